"""Takes the sizes of row groups, a seed and an epoch, gives the order of the packs in that epoch.

Row groups are shuffled, and packs within windows of consecutive ones, so that reading in this order decodes every row
group once. A pure function; knows nothing of files, steps or ranks.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from packtool.hashing import order_hash

Int64s = NDArray[np.int64]


class EpochOrder:
    """The permutation of one epoch, computed a window at a time.

    A place is a position in the epoch, a pack is a number in the dataset. Any stretch of places can be had without
    those before it.
    """

    def __init__(self, group_packs: Int64s, seed: int, epoch: int, window: int, shuffle: bool = True) -> None:
        """The order for these row groups.

        Args:
            group_packs: int64 [G], the packs in each row group; those of the first are numbered from 0.
            seed: any integer.
            epoch: 0 or more.
            window: how many row groups are shuffled together.
            shuffle: False leaves packs in their own order.
        """
        # Row groups and packs each have a key of their own, so that they do not move alike.
        keys = order_hash(seed, np.array([2 * epoch, 2 * epoch + 1], dtype=np.int64))
        self._pack_key = int(keys[1])
        self._shuffle = shuffle
        self._firsts = np.cumsum(group_packs) - group_packs
        numbers = np.arange(len(group_packs), dtype=np.int64)
        groups = np.argsort(order_hash(int(keys[0]), numbers), kind="stable") if shuffle else numbers
        self._rank_of_group = np.empty_like(numbers)
        self._rank_of_group[groups] = numbers
        self._windows = [groups[first : first + window] for first in range(0, len(groups), window)]
        self._sizes = group_packs
        self._window_ends = np.cumsum([int(group_packs[window].sum()) for window in self._windows])
        # A step may span two windows, so the last two are kept.
        self._window = lru_cache(2)(self._shuffled_window)

    def __len__(self) -> int:
        return int(self._window_ends[-1]) if len(self._window_ends) else 0

    def packs(self, start: int, stop: int) -> Int64s:
        """int64 [stop - start], the packs at the places ``start`` to ``stop - 1``, cut at the epoch's end."""
        stop = min(stop, len(self))
        parts = [np.empty(0, dtype=np.int64)]
        while start < stop:
            number = int(np.searchsorted(self._window_ends, start, side="right"))
            window = self._window(number)
            offset = start - (int(self._window_ends[number]) - len(window))
            parts.append(window[offset : offset + stop - start])
            start += len(parts[-1])
        return np.concatenate(parts)

    def as_read(self, packs: Int64s) -> Int64s:
        """``packs`` in the order in which they cost the least reading: by row group as the epoch visits them."""
        groups = np.searchsorted(self._firsts, packs, side="right") - 1
        return packs[np.lexsort((packs, self._rank_of_group[groups]))]

    def _shuffled_window(self, number: int) -> Int64s:
        groups = self._windows[number]
        packs = np.concatenate(
            [np.arange(self._firsts[group], self._firsts[group] + self._sizes[group]) for group in groups]
        )
        if not self._shuffle:
            return packs
        return packs[np.argsort(order_hash(self._pack_key, packs), kind="stable")]
