"""EpochOrder: a permutation that any stretch can be had of, and that visits row groups window by window."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtool.hashing import order_hash
from packtool.torch.order import EpochOrder

GROUPS = st.lists(st.integers(1, 9), min_size=1, max_size=40).map(lambda sizes: np.array(sizes, dtype=np.int64))
SEEDS = st.integers(-(2**70), 2**70)


def whole(order: EpochOrder) -> list[int]:
    """The packs of an epoch."""
    return order.packs(0, len(order)).tolist()


def slow(sizes: list[int], seed: int, epoch: int, window: int) -> list[int]:
    """The order, pack by pack."""

    def place(key: int, number: int) -> int:
        return int(order_hash(key, np.array([number]))[0])

    group_key, pack_key = place(seed, 2 * epoch), place(seed, 2 * epoch + 1)
    groups = sorted(range(len(sizes)), key=lambda group: place(group_key, group))
    packs = []
    for first in range(0, len(groups), window):
        inside = [sum(sizes[:group]) + row for group in groups[first : first + window] for row in range(sizes[group])]
        packs += sorted(inside, key=lambda pack: place(pack_key, pack))
    return packs


@given(GROUPS, SEEDS, st.integers(0, 1000), st.integers(1, 20))
def test_the_order_is_that_of_slow_code(
    sizes: np.ndarray[tuple[int], np.dtype[np.int64]], seed: int, epoch: int, window: int
) -> None:
    assert whole(EpochOrder(sizes, seed, epoch, window)) == slow(sizes.tolist(), seed, epoch, window)


@given(GROUPS, SEEDS, st.integers(0, 1000), st.integers(1, 20), st.booleans())
def test_every_pack_has_one_place(
    sizes: np.ndarray[tuple[int], np.dtype[np.int64]], seed: int, epoch: int, window: int, shuffle: bool
) -> None:
    order = EpochOrder(sizes, seed, epoch, window, shuffle)
    assert len(order) == sizes.sum()
    assert sorted(whole(order)) == list(range(sizes.sum()))


@given(GROUPS, SEEDS, st.integers(1, 20), st.data())
def test_any_stretch_is_that_of_the_whole(
    sizes: np.ndarray[tuple[int], np.dtype[np.int64]], seed: int, window: int, data: st.DataObject
) -> None:
    packs = whole(EpochOrder(sizes, seed, 3, window))
    start = data.draw(st.integers(0, len(packs) + 5))
    stop = data.draw(st.integers(start, len(packs) + 9))
    assert EpochOrder(sizes, seed, 3, window).packs(start, stop).tolist() == packs[start:stop]


@given(GROUPS, SEEDS, st.integers(1, 20))
def test_a_window_is_left_for_good_when_the_next_begins(
    sizes: np.ndarray[tuple[int], np.dtype[np.int64]], seed: int, window: int
) -> None:
    groups = np.repeat(np.arange(len(sizes)), sizes)[whole(EpochOrder(sizes, seed, 0, window))]
    first = {group: place for place, group in reversed(list(enumerate(groups.tolist())))}
    last = {group: place for place, group in enumerate(groups.tolist())}
    open_at = [sum(first[g] <= place <= last[g] for g in first) for place in range(len(groups))]
    assert max(open_at) <= window


@given(GROUPS, SEEDS, st.integers(1, 20), st.data())
def test_read_order_visits_each_group_once_and_window_by_window(
    sizes: np.ndarray[tuple[int], np.dtype[np.int64]], seed: int, window: int, data: st.DataObject
) -> None:
    order = EpochOrder(sizes, seed, 0, window)
    start = data.draw(st.integers(0, len(order)))
    packs = order.packs(start, data.draw(st.integers(start, len(order))))
    read = order.as_read(packs)
    assert sorted(read.tolist()) == sorted(packs.tolist())
    groups = np.repeat(np.arange(len(sizes)), sizes)
    visits = groups[read]
    assert np.count_nonzero(np.diff(visits)) == max(0, len(set(visits.tolist())) - 1)
    place = {group: index for index, group in enumerate(dict.fromkeys(groups[order.as_read(np.array(whole(order)))]))}
    assert [place[group] for group in visits] == sorted(place[group] for group in visits)


def test_seeds_and_epochs_give_orders_of_their_own() -> None:
    sizes = np.full(40, 8)
    orders = [whole(EpochOrder(sizes, seed, epoch, 4)) for seed in (0, 1, 2) for epoch in (0, 1, 2)]
    for index, order in enumerate(orders):
        for other in orders[:index]:
            assert sum(a == b for a, b in zip(order, other, strict=True)) < 12, "about one in 320 agrees by chance"
    assert whole(EpochOrder(sizes, 1, 2, 4)) == orders[5]


def test_the_order_of_a_seed_never_changes() -> None:
    assert whole(EpochOrder(np.array([3, 1, 4, 2]), seed=7, epoch=1, window=2)) == GOLDEN


GOLDEN = [0, 2, 1, 3, 4, 7, 6, 9, 5, 8]
"""A checkpoint counts in packs of this order: another order would train packs twice, and others never."""


def test_packs_spread_over_their_window() -> None:
    packs = np.array(whole(EpochOrder(np.full(64, 16), 0, 0, 16)))
    neighbours = np.count_nonzero(np.abs(np.diff(packs)) == 1)
    assert neighbours < 40, "of 1,023 pairs"
    for first in range(0, 1024, 256):
        groups = set((packs[first : first + 256] // 16).tolist())
        assert len(groups) == 16
        early = set((packs[first : first + 64] // 16).tolist())
        assert len(early) >= 14, "the first quarter of a window draws from nearly all of it"


@pytest.mark.parametrize("epoch", [0, 5])
def test_without_shuffling_packs_stay_in_place(epoch: int) -> None:
    order = EpochOrder(np.array([3, 1, 4]), 9, epoch, 2, shuffle=False)
    assert whole(order) == list(range(8))
    assert order.as_read(np.array([6, 2, 7])).tolist() == [2, 6, 7]
