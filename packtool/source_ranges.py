"""Which source, and which line of it, a doc id stands for: doc id = the source's ``first`` + its zero-based row.

Takes the sources as the manifest lists them; knows nothing of packs or rejects.
"""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from packtool.manifest import SourceEntry
from packtool.shards import Int64s


class SourceRanges:
    """The sources of a dataset, each a range of doc ids."""

    def __init__(self, sources: Sequence[SourceEntry]) -> None:
        """Take the manifest's sources, whose ``first`` rises."""
        self._firsts = [entry.first for entry in sources]
        self._ends = [entry.first + entry.rows for entry in sources]
        self._first_array = np.array(self._firsts, dtype=np.int64)
        self._end_array = np.array(self._ends, dtype=np.int64)

    def find(self, doc_ids: Int64s) -> Int64s:
        """The index of each document's source, or -1 where no source has that id; int64, as ``doc_ids``."""
        # An empty source shares its first id with the next one: the last that starts at or before an id counts.
        found = np.searchsorted(self._first_array, doc_ids, side="right") - 1
        inside = found >= 0
        if len(self._ends):
            inside &= doc_ids < self._end_array[found]
        result: Int64s = np.where(inside, found, -1)
        return result

    def place(self, doc_id: int) -> tuple[int, int]:
        """The index of one document's source and its line there (or row, or element), from 1; -1 and 0 for none."""
        found = bisect_right(self._firsts, doc_id) - 1
        if found < 0 or doc_id >= self._ends[found]:
            return -1, 0
        return found, doc_id - self._firsts[found] + 1
