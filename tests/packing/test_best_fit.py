import numpy as np
import pytest
from hypothesis import given

from packtool.packing import Histogram, bounds
from packtool.packing.best_fit import CountPlan, plan, plan_counts

from . import reference
from .cases import Case, blocks_of, cases


@given(cases())
def test_plan_is_item_by_item_best_fit_decreasing(case: Case) -> None:
    with blocks_of(case.block):
        packing = plan(case.array, case.max_length, case.max_segments)
    expected = reference.best_fit_decreasing(case.lengths, case.max_length, case.max_segments)
    assert reference.as_lists(packing, case.lengths) == expected


@pytest.mark.parametrize("max_length", [64, 97, 1025])
@pytest.mark.parametrize("max_segments", [None, 3])
def test_plan_is_item_by_item_best_fit_decreasing_on_thousands_of_items(
    max_length: int, max_segments: int | None
) -> None:
    lengths = (np.random.default_rng(max_length).lognormal(np.log(max_length / 6), 1, 2500)).astype(np.int32)
    lengths = np.clip(lengths, 1, max_length)
    expected = reference.best_fit_decreasing(lengths.tolist(), max_length, max_segments)
    assert reference.as_lists(plan(lengths, max_length, max_segments), lengths.tolist()) == expected


@pytest.mark.parametrize(
    ("max_length", "lengths", "packs"),
    [
        (4, [3, 4, 1], [[1], [0, 2]]),
        (4, [4, 2, 4, 1], [[0], [2], [1, 3]]),  # a first document of 5, truncated
        (4, [4, 1, 2, 4, 1], [[0], [3], [2, 1, 4]]),  # the same document, split
        (5, [5, 1, 4, 3], [[0], [2, 1], [3]]),
        (4, [2, 3, 1], [[1, 2], [0]]),
        (8, [7, 6, 5, 3, 2, 1], [[0, 5], [1, 4], [2, 3]]),
        (8, [5, 5, 5, 3, 2], [[0, 3], [1, 4], [2]]),
    ],
)
def test_golden_plans(max_length: int, lengths: list[int], packs: list[list[int]]) -> None:
    planned = reference.as_lists(plan(np.array(lengths, dtype=np.int32), max_length), lengths)
    assert [[item for item, _, _ in pack] for pack in planned] == packs


def test_among_packs_of_equal_free_space_the_one_that_reached_it_first_is_taken() -> None:
    # 9 joins 10, then 7 joins 12: both packs have 1 left, and the later one had it first
    lengths = [12, 10, 9, 7, 1]
    packs = reference.as_lists(plan(np.array(lengths, dtype=np.int32), 20), lengths)
    assert [[size for _, _, size in pack] for pack in packs] == [[12, 7], [10, 9, 1]]


def test_one_pack_is_filled_with_equal_items_before_the_next() -> None:
    lengths = [6, 6, 2, 2, 2, 2]
    packs = reference.as_lists(plan(np.array(lengths, dtype=np.int32), 10), lengths)
    assert [[item for item, _, _ in pack] for pack in packs] == [[0, 2, 3], [1, 4, 5]]


@pytest.mark.parametrize("max_length", [8, 13, 17, 33, 64, 100])
@pytest.mark.parametrize("max_segments", [None, 2, 5])
def test_plan_is_item_by_item_best_fit_decreasing_where_lengths_recur(
    max_length: int, max_segments: int | None
) -> None:
    rng = np.random.default_rng(max_length)
    for _ in range(60):
        pool = rng.integers(1, max_length + 1, rng.integers(1, 5))
        lengths = rng.choice(pool, rng.integers(1, 60)).astype(np.int32)
        expected = reference.best_fit_decreasing(lengths.tolist(), max_length, max_segments)
        assert reference.as_lists(plan(lengths, max_length, max_segments), lengths.tolist()) == expected


def test_no_items_are_no_packs() -> None:
    packing = plan(np.empty(0, dtype=np.int32), 8)
    assert len(packing.items) == len(packing.counts) == 0


@pytest.mark.parametrize(
    ("lengths", "max_length", "max_segments", "message"),
    [
        ([3, 0, 2], 4, None, "item 1 has 0 tokens"),
        ([3, 2, 5], 4, None, "item 2 has 5 tokens, more than max_length 4"),
        ([1], 0, None, "max_length is 0"),
        ([1], 4, 0, "max_segments is 0"),
        ([], 0, None, "max_length is 0"),
    ],
)
def test_what_cannot_be_planned_is_refused(
    lengths: list[int], max_length: int, max_segments: int | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        plan(np.array(lengths, dtype=np.int32), max_length, max_segments)


def test_more_items_than_an_int32_counts_are_refused() -> None:
    lengths = np.lib.stride_tricks.as_strided(np.ones(1, dtype=np.int32), (1 << 31,), (0,))  # 4 bytes
    with pytest.raises(ValueError, match="at most 2\\^31 - 1"):
        plan(lengths, 4)


def huge_histogram(max_length: int) -> Histogram:
    """About 10^10 items, at every length up to ``max_length``, short ones most often."""
    rng = np.random.default_rng(1)
    weights = 1 / np.arange(1, max_length + 1)
    counts = rng.poisson(weights / weights.sum() * 1e10)
    return Histogram.from_counts({length: int(n) for length, n in enumerate(counts, start=1)})


def sums_over_packs(steps: CountPlan, values: np.ndarray) -> np.ndarray:
    """The sum of ``values`` (one a step) for each stretch of packs that all steps treat alike."""
    edges = np.unique(np.concatenate([steps.first, steps.first + steps.packs]))
    change = np.zeros(len(edges), dtype=np.int64)
    np.add.at(change, np.searchsorted(edges, steps.first), values)
    np.subtract.at(change, np.searchsorted(edges, steps.first + steps.packs), values)
    return np.cumsum(change)[:-1]


@pytest.mark.parametrize("max_segments", [None, 9])
def test_ten_billion_items_are_planned_from_their_histogram(max_segments: int | None) -> None:
    max_length = 2048
    histogram = huge_histogram(max_length)
    steps = plan_counts(histogram, max_length, max_segments)

    taken = steps.packs * steps.each
    by_length = np.repeat(
        histogram.lengths[::-1],
        np.diff(np.searchsorted(np.cumsum(taken), np.cumsum(histogram.counts[::-1]), side="right"), prepend=0),
    )
    tokens = sums_over_packs(steps, steps.each * by_length)
    segments = sums_over_packs(steps, steps.each)

    assert steps.n_segments == taken.sum() == histogram.items > 9_990_000_000
    assert (taken * by_length).sum() == histogram.tokens
    assert steps.n_packs == (steps.first + steps.packs).max()
    assert tokens.min() >= 1
    assert tokens.max() <= max_length
    assert segments.max() <= (max_segments or max_length)
    assert steps.n_packs >= bounds.whole_bound(histogram, max_length, max_segments)


def test_the_number_of_steps_does_not_grow_with_the_number_of_items() -> None:
    lengths = np.arange(1, 129)
    some = plan_counts(Histogram(lengths, np.full(128, 1000)), 128)
    many = plan_counts(Histogram(lengths, np.full(128, 1_000_000_000)), 128)
    assert len(many.first) <= 2 * len(some.first)
