import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtool.packing import OpenPack
from packtool.packing.in_order import plan, stream

from . import reference
from .cases import Case, blocks_of, cases, chunk_by_chunk


@given(cases())
def test_plan_fills_each_pack_until_the_next_item_does_not_fit(case: Case) -> None:
    with blocks_of(case.block):
        packing = plan(case.array, case.max_length, case.max_segments)
    expected = reference.in_order(case.lengths, case.max_length, case.max_segments)
    assert reference.as_lists(packing, case.lengths) == expected


@given(cases(), st.data())
def test_a_stream_in_any_chunks_is_the_plan_of_the_whole(case: Case, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(case.lengths)), max_size=8)))
    with blocks_of(case.block):
        packing = chunk_by_chunk(stream, case.array, cuts, case.max_length, case.max_segments)
    expected = reference.in_order(case.lengths, case.max_length, case.max_segments)
    assert reference.as_lists(packing, case.lengths) == expected


def test_an_item_that_does_not_fit_closes_the_pack_for_good() -> None:
    lengths = np.array([3, 3, 1, 1], dtype=np.int32)
    assert plan(lengths, 4).counts.tolist() == [1, 2, 1]


def test_a_full_pack_stays_open_until_the_next_item() -> None:
    part = stream(np.array([2, 2], dtype=np.int32), 4, None, OpenPack())
    assert part.counts.tolist() == []
    assert part.open == OpenPack(tokens=4, segments=2)
    after = stream(np.array([1], dtype=np.int32), 4, None, part.open)
    assert after.counts.tolist() == [2]
    assert after.open == OpenPack(tokens=1, segments=1)


def test_an_item_longer_than_a_pack_is_refused() -> None:
    with pytest.raises(ValueError, match="item 1 has 5 tokens, more than max_length 4"):
        plan(np.array([1, 5], dtype=np.int32), 4)
