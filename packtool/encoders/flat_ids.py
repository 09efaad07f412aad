"""Ids of many texts in two arrays, which is what every encoder gives."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Self

import numpy as np
from numpy.typing import NDArray

Int32s = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class FlatIds:
    """The tokens of texts."""

    ids: Int32s
    """int32 [T], the texts' tokens laid end to end."""
    lengths: Int32s
    """int32 [n]."""

    @classmethod
    def of(cls, lists: Sequence[Sequence[int]]) -> Self:
        """The same from one sequence of ids a text."""
        lengths = np.fromiter(map(len, lists), np.int32, len(lists))
        total = int(lengths.sum(dtype=np.int64))
        return cls(np.fromiter(chain.from_iterable(lists), np.int32, total), lengths)

    @property
    def stops(self) -> NDArray[np.int64]:
        """int64 [n], one past the last token of each text."""
        return np.cumsum(self.lengths, dtype=np.int64)

    def each(self, texts: Sequence[int]) -> Iterator[Int32s]:
        """The ids of the texts with these numbers."""
        stops = self.stops
        for text in texts:
            yield self.ids[int(stops[text]) - int(self.lengths[text]) : int(stops[text])]

    def some(self, texts: Sequence[int]) -> Self:
        """Those of the texts with these numbers."""
        parts = list(self.each(texts))
        ids = np.concatenate(parts) if parts else np.empty(0, np.int32)
        return type(self)(ids, self.lengths[np.asarray(texts, np.int64)])
