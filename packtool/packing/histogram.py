"""How many items have each length, taken from lengths or given. It does not know which items they are."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from packtool.packing.packing import I32, I64, blocks

_DENSE = 1 << 20  # lengths up to here are counted in one array of 8 MiB; the few longer ones are sorted


@dataclass(frozen=True, slots=True)
class Histogram:
    """Distinct lengths, ascending, and how many items have each; its size does not grow with the items."""

    lengths: I64
    """int64 [D], distinct, ascending."""
    counts: I64
    """int64 [D], items of each length, all >= 1."""

    @classmethod
    def of(cls, lengths: I32) -> Self:
        """Count ``lengths`` (int32 [n], all >= 0), in memory that does not grow with n."""
        dense = np.zeros(_DENSE, dtype=np.int64)
        long: dict[int, int] = {}
        for start, stop in blocks(len(lengths)):
            block = lengths[start:stop]
            if int(block.max()) >= _DENSE:
                values, counts = np.unique(block[block >= _DENSE], return_counts=True)
                for value, count in zip(values.tolist(), counts.tolist(), strict=True):
                    long[value] = long.get(value, 0) + count
                block = block[block < _DENSE]
            tally = np.bincount(block)
            dense[: len(tally)] += tally
        short = np.flatnonzero(dense)
        tail = cls.from_counts(long)
        return cls(np.concatenate([short, tail.lengths]), np.concatenate([dense[short], tail.counts]))

    @classmethod
    def from_counts(cls, counts: Mapping[int, int]) -> Self:
        """From {length: items}; a count of 0 is no entry.

        Raises:
            ValueError: a length or a count is negative.
        """
        kept = sorted((length, count) for length, count in counts.items() if count)
        for length, count in kept:
            if length < 0 or count < 0:
                raise ValueError(f"{count} items of length {length}: neither may be negative")
        table = np.array(kept, dtype=np.int64).reshape(-1, 2)
        return cls(np.ascontiguousarray(table[:, 0]), np.ascontiguousarray(table[:, 1]))

    @property
    def items(self) -> int:
        """How many items there are."""
        return int(self.counts.sum())

    @property
    def tokens(self) -> int:
        """How many tokens they have together."""
        return int((self.lengths * self.counts).sum())
