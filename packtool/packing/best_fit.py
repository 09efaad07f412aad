"""Best-fit-decreasing: lengths in, packs out, planned from how many items have each length.

Longest first, ties in input order; each item goes into the open pack with the least free space that still
fits it, among equals into the one that reached that free space first, else into a new pack. Packs are
numbered as they are opened.

Items of equal length are interchangeable, so the plan is made from counts and its cost depends on the number
of distinct lengths, not of items; then items are dealt to it. The result is exactly that of the item-by-item
algorithm (Johnson, "Near-optimal bin packing algorithms", 1973). It does not know what an item is.
"""

from array import array
from dataclasses import dataclass

import numpy as np

from packtool.packing.histogram import Histogram
from packtool.packing.packing import I32, I64, Packing, blocks, check_lengths, check_limits


@dataclass(frozen=True, slots=True)
class CountPlan:
    """A best-fit-decreasing plan of a histogram: steps, in the order in which they take items, longest first.

    Step e takes the next ``packs[e] * each[e]`` items: ``each[e]`` for pack ``first[e]``, as its segments
    ``slot[e]``, ``slot[e] + 1``, ...; then ``each[e]`` for the next pack; and so on.
    """

    first: I64
    """int64 [E], the first pack of each step."""
    packs: I64
    """int64 [E], how many consecutive packs it serves."""
    each: I64
    """int64 [E], items that each of them takes."""
    slot: I64
    """int64 [E], segments that each of them had before."""
    n_packs: int
    n_segments: int


def plan(lengths: I32, max_length: int, max_segments: int | None = None) -> Packing:
    """Best-fit-decreasing over ``lengths``.

    Args:
        lengths: int32 [n], tokens of each item, 1 to ``max_length``.
        max_length: tokens that a pack has room for.
        max_segments: segments that a pack has room for; None for any number.

    Returns:
        Packs in the order in which they were opened; every item whole, in exactly one pack. At its peak the
        call holds at most 12 bytes an item beyond ``lengths``, its result included, and what ``plan_counts``
        needs: about 150 bytes for each distinct length.

    Raises:
        ValueError: an item is empty or longer than ``max_length``, there are 2^31 items or more, or a limit
            is below 1.
    """
    check_limits(max_length, max_segments)
    check_lengths(lengths, max_length)
    histogram = Histogram.of(lengths)
    steps = plan_counts(histogram, max_length, max_segments)
    starts = _pack_starts(steps)
    items = _deal(steps, starts, _longest_first(lengths, histogram))
    return Packing(items, np.diff(starts))


def plan_counts(histogram: Histogram, max_length: int, max_segments: int | None = None) -> CountPlan:
    """Best-fit-decreasing over counts: 10^10 items cost no more than 10^5.

    Open packs are kept in classes of equal free space, each a first-in-first-out queue of runs: consecutive
    packs that hold equally many segments. For n items of length l take the class with the least free space
    s >= l; the first pack of its oldest run is filled with m = s // l of them before any other pack is (what
    is left of it, s - l, is a tighter fit than s), then the next, so the whole run is filled in one step.

    Args:
        histogram: lengths from 1 to ``max_length``.
        max_length: tokens that a pack has room for.
        max_segments: segments that a pack has room for; None for any number.

    Raises:
        ValueError: a length is below 1 or above ``max_length``, or a limit is below 1.
    """
    check_limits(max_length, max_segments)
    if len(histogram.lengths) and not 1 <= histogram.lengths[0] <= histogram.lengths[-1] <= max_length:
        shortest, longest = histogram.lengths[[0, -1]]
        raise ValueError(f"lengths from {shortest} to {longest}; they must lie in 1 to {max_length}")
    room = max_segments if max_segments is not None else max_length  # no limit: every segment has a token
    open_packs = _OpenPacks(max_length, room)
    steps = array("q")  # four numbers a step
    n_packs = 0
    for length, n in zip(histogram.lengths[::-1].tolist(), histogram.counts[::-1].tolist(), strict=True):
        while n and (space := open_packs.tightest(length)):
            first, packs, slot = open_packs.oldest(space)
            each = min(space // length, room - slot)
            if packs * each > n:
                packs = n // each  # the rest of the run stays the oldest of its class
            if not packs:
                packs, each = 1, n  # the last items fill one pack in part
            open_packs.take(space, packs)
            open_packs.put(space - each * length, first, packs, slot + each)
            steps.extend((first, packs, each, slot))
            n -= packs * each
        each = min(max_length // length, room)
        for packs, take in ((n // each, each), (1, n % each)):
            if packs and take:
                open_packs.put(max_length - take * length, n_packs, packs, take)
                steps.extend((n_packs, packs, take, 0))
                n_packs += packs
    first_, packs_, each_, slot_ = np.frombuffer(steps, dtype=np.int64).reshape(-1, 4).T.copy()
    return CountPlan(first_, packs_, each_, slot_, n_packs, histogram.items)


class _OpenPacks:
    """Packs with room for more, in classes of equal free space: queues of runs (first pack, packs, segments).

    Queues are lists, not deques: nearly all hold one run, and there may be a class for every length.
    """

    def __init__(self, max_length: int, max_segments: int) -> None:
        self._max_segments = max_segments
        self._classes: dict[int, list[tuple[int, int, int]]] = {}
        # Which classes there are, as bits: words of about sqrt(max_length) bits, and a word of a bit for each
        self._width = max(5, (max_length.bit_length() + 1) // 2)
        self._mask = (1 << self._width) - 1
        self._words = [0] * ((max_length >> self._width) + 1)
        self._used = 0

    def tightest(self, length: int) -> int:
        """The least free space >= length (>= 1) that an open pack has, or 0."""
        index = length >> self._width
        shift = length & self._mask
        word = self._words[index] >> shift << shift
        if not word:
            above = self._used >> (index + 1)
            if not above:
                return 0
            index += (above & -above).bit_length()
            word = self._words[index]
        return (index << self._width) + (word & -word).bit_length() - 1

    def oldest(self, space: int) -> tuple[int, int, int]:
        return self._classes[space][0]

    def take(self, space: int, packs: int) -> None:
        """Remove the first ``packs`` packs of the oldest run of a class."""
        queue = self._classes[space]
        first, there, segments = queue[0]
        if packs < there:
            queue[0] = (first + packs, there - packs, segments)
            return
        del queue[0]
        if not queue:
            del self._classes[space]
            index = space >> self._width
            self._words[index] &= ~(1 << (space & self._mask))
            if not self._words[index]:
                self._used &= ~(1 << index)

    def put(self, space: int, first: int, packs: int, segments: int) -> None:
        """Append a run to a class; packs without room are closed instead."""
        if not space or segments >= self._max_segments:
            return
        queue = self._classes.get(space)
        if queue is None:
            self._classes[space] = [(first, packs, segments)]
            index = space >> self._width
            self._words[index] |= 1 << (space & self._mask)
            self._used |= 1 << index
            return
        last_first, last_packs, last_segments = queue[-1]
        if last_segments == segments and last_first + last_packs == first:
            queue[-1] = (last_first, last_packs + packs, segments)  # consecutive packs alike are one run
        else:
            queue.append((first, packs, segments))


def _pack_starts(steps: CountPlan) -> I32:
    """int32 [P + 1]: where each pack's segments begin, and the number of all segments.

    A step adds ``each`` to the packs of an interval: +each where it starts, -each behind it; running sums are
    segments per pack, running sums of those the starts.
    """
    starts = np.zeros(steps.n_packs + 2, dtype=np.int32)
    each = steps.each.astype(np.int32)
    np.add.at(starts, steps.first + 1, each)
    np.subtract.at(starts, steps.first + steps.packs + 1, each)
    np.cumsum(starts, out=starts)
    np.cumsum(starts[:-1], out=starts[:-1])
    return starts[:-1]


def _longest_first(lengths: I32, histogram: Histogram) -> I32:
    """int32 [n], the items by length, longest first, equal lengths in input order: a counting sort."""
    order = np.empty(len(lengths), dtype=np.int32)
    place = len(lengths) - np.cumsum(histogram.counts)  # of the next item of each length; the longest come first
    for start, stop in blocks(len(lengths)):
        keys = lengths[start:stop].astype(np.int64)
        keys <<= 32
        keys |= np.arange(start, stop)
        keys.sort()  # by length, then by item; no two are equal
        block = keys >> 32
        firsts = np.flatnonzero(np.concatenate([[True], block[1:] != block[:-1]]))
        present = np.searchsorted(histogram.lengths, block[firsts])
        counts = np.diff(firsts, append=len(block))
        keys &= 0xFFFFFFFF
        order[np.arange(len(block)) + np.repeat(place[present] - firsts, counts)] = keys
        place[present] += counts
    return order


def _deal(steps: CountPlan, starts: I32, order: I32) -> I32:
    """int32 [S], the items pack by pack: what ``order`` holds goes to the steps' packs, in turn."""
    items = np.empty(len(order), dtype=np.int32)
    ends = np.cumsum(steps.packs * steps.each)
    for start, stop in blocks(len(order)):
        low, high = np.searchsorted(ends, [start, stop - 1], side="right")
        step = slice(int(low), int(high) + 1)
        begins = ends[step] - steps.packs[step] * steps.each[step]
        here = np.minimum(ends[step], stop) - np.maximum(begins, start)
        nth = np.arange(start, stop) - np.repeat(begins, here)  # of its step, which serves its packs in turn
        each = np.repeat(steps.each[step], here)
        pack, slot = np.divmod(nth, each)
        pack += np.repeat(steps.first[step], here)
        slot += np.repeat(steps.slot[step], here)
        slot += starts[pack]
        items[slot] = order[start:stop]
    return items
