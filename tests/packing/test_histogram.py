from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtool.packing import Histogram

from .cases import blocks_of


@given(
    st.lists(st.one_of(st.integers(0, 5), st.integers(2**20 - 2, 2**20 + 2), st.integers(0, 2**31 - 1))),
    st.sampled_from([1, 3, 1 << 16]),
)
def test_every_length_is_counted(lengths: list[int], block: int) -> None:
    with blocks_of(block):
        histogram = Histogram.of(np.array(lengths, dtype=np.int32))
    pairs = zip(histogram.lengths.tolist(), histogram.counts.tolist(), strict=True)
    assert list(pairs) == sorted(Counter(lengths).items())
    assert histogram.items == len(lengths)
    assert histogram.tokens == sum(lengths)


@given(st.dictionaries(st.integers(0, 100), st.integers(0, 10**10)))
def test_a_histogram_may_be_given(counts: dict[int, int]) -> None:
    histogram = Histogram.from_counts(counts)
    assert histogram.lengths.tolist() == sorted(length for length, n in counts.items() if n)
    assert histogram.items == sum(counts.values())
    assert histogram.tokens == sum(length * n for length, n in counts.items())


def test_negative_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="-1 items of length 3"):
        Histogram.from_counts({3: -1})
