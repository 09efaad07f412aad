import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtool.packing import Histogram, wrapped
from packtool.packing.best_fit import plan
from packtool.packing.bounds import joined_bound, whole_bound

from . import reference
from .cases import Case, cases


@given(st.lists(st.integers(1, 20), max_size=8), st.integers(0, 12), st.one_of(st.none(), st.integers(1, 4)))
def test_no_bound_is_above_the_optimum(lengths: list[int], spare: int, max_segments: int | None) -> None:
    max_length = max(lengths, default=1) + spare
    histogram = Histogram.from_counts({length: lengths.count(length) for length in lengths})
    fewest = reference.fewest_packs(lengths, max_length, max_segments)
    assert whole_bound(histogram, max_length, max_segments) <= fewest


@given(cases())
def test_the_bound_for_whole_items_is_at_least_that_for_joined_ones(case: Case) -> None:
    histogram = Histogram.of(case.array)
    joined = joined_bound(histogram, case.max_length, case.max_segments)
    whole = whole_bound(histogram, case.max_length, case.max_segments)
    packs = len(plan(case.array, case.max_length, case.max_segments).counts)
    assert joined <= whole <= packs


@given(cases(longest=4, most=60))
def test_no_stream_has_fewer_packs_than_the_bound_for_joined_items(case: Case) -> None:
    packs = len(wrapped.plan(case.array, case.max_length, case.max_segments).counts)
    assert joined_bound(Histogram.of(case.array), case.max_length, case.max_segments) <= packs


def test_items_just_over_half_a_pack_need_a_pack_each() -> None:
    histogram = Histogram.from_counts({51: 10, 10: 3})
    assert joined_bound(histogram, 100) == 6
    assert whole_bound(histogram, 100) == 10


def test_small_items_that_fit_beside_no_large_one_need_packs_of_their_own() -> None:
    # 60 and 40 fit together; 70 leaves 30, which no 40 fits: (60,40) x 2, 70, and (40,40) for what remains
    assert whole_bound(Histogram.from_counts({60: 2, 70: 1, 40: 4}), 100) == 4
    assert joined_bound(Histogram.from_counts({60: 2, 70: 1, 40: 4}), 100) == 4
    assert whole_bound(Histogram.from_counts({70: 3, 40: 3}), 100) == 5
    assert joined_bound(Histogram.from_counts({70: 3, 40: 3}), 100) == 4


def test_a_limit_of_segments_bounds_the_packs() -> None:
    histogram = Histogram.from_counts({1: 10})
    assert joined_bound(histogram, 100, 3) == whole_bound(histogram, 100, 3) == 4


def test_no_items_need_no_pack() -> None:
    assert joined_bound(Histogram.from_counts({}), 8, 1) == whole_bound(Histogram.from_counts({}), 8, 1) == 0


def test_an_item_longer_than_a_pack_cannot_stay_whole() -> None:
    with pytest.raises(ValueError, match="an item has 9 tokens, more than max_length 8"):
        whole_bound(Histogram.from_counts({9: 1}), 8)
