"""The repetition levels of a column chunk become the length of its longest row; no value is read.

Headers of pages bound a chunk, but one row of it may have nearly all there is. A level of 0 begins a row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from packtool.parquet.footer import ColumnChunk
from packtool.parquet.pages import Page, content, data_pages

_RLE = 3  # the encoding


@dataclass(frozen=True, slots=True)
class LongestRow:
    """What a row of a chunk has at most."""

    values: int
    """Nulls and empty lists counted."""
    page_bytes: int
    """Of the pages that it lies in, without compression."""


def longest_row(read: Callable[[int, int], bytes], chunk: ColumnChunk, deepest: int) -> LongestRow:
    """Read the levels of a chunk whose pages were found to be sound and not too large.

    Args:
        read: gives so many bytes of the file from a place.
        chunk: from the footer, of a column inside lists.
        deepest: the highest level there may be, at least 1.

    Raises:
        ValueError: they are damaged, or written in a way that is not known.
    """
    row = _Row()
    most_bytes = open_bytes = 0  # of the pages from the one where the row begins that has not ended yet
    for page in data_pages(read, chunk):
        before = row.begun
        row.add(_levels(read, chunk, page), page.values, deepest.bit_length())
        open_bytes += page.decoded
        most_bytes = max(most_bytes, open_bytes)
        if row.begun > before:
            open_bytes = page.decoded
    return LongestRow(max(row.longest, row.length), most_bytes)


def _levels(read: Callable[[int, int], bytes], chunk: ColumnChunk, page: Page) -> bytes:
    if page.level_bytes is not None:  # of the second version: they are not compressed
        return read(page.start, min(page.stored, max(0, page.level_bytes)))
    if page.level_encoding != _RLE:
        raise ValueError(f"levels of encoding {page.level_encoding}, not known")
    data = content(read, chunk, page)
    return data[4 : 4 + int.from_bytes(data[:4], "little")]


class _Row:
    """The row that has not ended yet, and the longest before it."""

    def __init__(self) -> None:
        self.begun = 0
        """How many rows have."""
        self.length = 0
        self.longest = 0

    def add(self, levels: bytes, values: int, width: int) -> None:
        """Take the levels of the next page: runs of one level, and stretches of levels in ``width`` bits each."""
        at = 0
        while values > 0:
            head, at = _number(levels, at)
            if head & 1:
                size = (head >> 1) * width
                packed = levels[at : at + size]
                if len(packed) < size or not size:
                    raise ValueError("levels end early")
                at += size
                count = min(values, (head >> 1) * 8)
                if size == 1:
                    self._take(*_starts_in_byte(packed[0] | (0xFF << count) & 0xFF), count)
                else:
                    self._take(*_starts(np.flatnonzero(_are_zero(packed, width)[:count])), count)
            else:
                count = min(values, head >> 1)
                size = (width + 7) // 8
                if not count or at + size > len(levels):
                    raise ValueError("levels end early")
                if any(levels[at : at + size]):
                    self.length += count
                else:
                    self.longest = max(self.longest, self.length)
                    self.begun += count
                    self.length = 1
                at += size
            values -= count

    def _take(self, starts: int, first: int, last: int, apart: int, count: int) -> None:
        if not starts:
            self.length += count
            return
        self.begun += starts
        self.longest = max(self.longest, self.length + first, apart)
        self.length = count - last


def _starts(places: NDArray[np.int64]) -> tuple[int, int, int, int]:
    """How many there are; the first, the last, and how far two that follow one another are apart at most."""
    if not len(places):
        return 0, 0, 0, 0
    return len(places), int(places[0]), int(places[-1]), int(np.diff(places).max(initial=0))


@lru_cache(maxsize=256)
def _starts_in_byte(byte: int) -> tuple[int, int, int, int]:
    # most rows that are longer than a few values begin in a byte of their own
    return _starts(np.flatnonzero(_are_zero(bytes([byte]), 1)))


def _are_zero(packed: bytes, width: int) -> NDArray[np.bool_]:
    bits = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")
    zero: NDArray[np.bool_] = np.equal(bits.reshape(-1, width).max(axis=1), 0)
    return zero


def _number(data: bytes, at: int) -> tuple[int, int]:
    """The number whose 7-bit groups begin at a place, and the place behind it."""
    number = shift = 0
    while True:
        if at >= len(data) or shift > 35:
            raise ValueError("levels end early")
        byte = data[at]
        number |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return number, at
        shift += 7
