"""A JSON array at the top of a file, streamed, becomes units of whole elements, and units become records.

A boundary scanner finds the commas between elements without parsing them; each element's bytes then go to
the parser of lines. It knows strings, escapes and depth, and nothing else of JSON: what is wrong inside an
element is for the parser to say.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packtool.errors import Refusal
from packtool.readers.decompress import read_blocks
from packtool.readers.parsing import AROUND_BYTES, BLANK, START_BYTES, parse, quoted, size_of, too_large
from packtool.readers.units import BLOCK_BYTES, Block, Record, Unit, changed
from packtool.sources import BOM, Source

_QUOTE, _BACKSLASH, _COMMA, _OPEN, _CLOSE = b'"\\,{}'
_FOLD = np.uint8(0x20)  # the bit that "{" and "}" have and "[" and "]" have not


@dataclass(frozen=True, slots=True, eq=False)
class ArrayUnit(Unit):
    """A stretch of the file from the start of one element to the end of another, and where each ends."""

    data: bytes
    """Element ``i`` is ``data[ends[i - 1] + 1 : ends[i]]``: one byte, a comma, lies between two. Of a last
    element that is too large only the start is held, and its end lies beyond the data."""
    ends: NDArray[np.int64]
    """int64 [elements]."""
    fault: str | None
    """What is wrong with the array at its last element, which is then no record."""
    digest: str | None
    """Of everything, where not all of it is held."""
    max_record_bytes: int


def cut(source: Source, source_index: int, unit_bytes: int, max_record_bytes: int) -> Iterator[Unit]:
    """Cut an array at the first comma between elements after each ``unit_bytes`` of them."""
    blocks = _after_bracket(source.path, read_blocks(source.path, source.compression))
    for index, stretch in enumerate(_stretches(blocks, unit_bytes, max_record_bytes)):
        yield ArrayUnit(
            source=source_index,
            index=index,
            path=source.path,
            max_records=None,
            data=stretch.data,
            ends=stretch.ends,
            fault=stretch.fault,
            digest=stretch.digest,
            max_record_bytes=max_record_bytes,
        )


class ArrayReader:
    """The elements of one unit."""

    columnar = False

    def __init__(self, unit: ArrayUnit) -> None:
        self._unit = unit
        self._rows = len(unit.ends) if unit.max_records is None else min(unit.max_records, len(unit.ends))

    @property
    def digest(self) -> str:
        """sha256 of the elements' bytes, the commas between them, and where each ends."""
        unit = self._unit
        if self._rows == len(unit.ends):
            return unit.digest or _digest(hashlib.sha256(_HEADER + unit.data), unit.ends)
        ends = unit.ends[: self._rows]
        return _digest(hashlib.sha256(_HEADER + unit.data[: int(ends[-1])]), ends)

    @property
    def rows(self) -> int:
        """Elements, with slots that hold none and what is wrong at the end."""
        return self._rows

    @property
    def size(self) -> int:
        """Bytes of the elements, with the commas behind them."""
        return int(self._unit.ends[self._rows - 1]) + 1 if self._rows else 0

    def count(self) -> int:
        """Every element counts as a record."""
        return self._rows

    def records(self) -> Iterator[tuple[int, Record | Refusal]]:
        """Each element, parsed."""
        unit = self._unit
        last = len(unit.ends) - 1
        bounds = pairwise([-1, *unit.ends[: self._rows].tolist()])
        for row, (before, end) in enumerate(bounds):
            raw = unit.data[before + 1 : end]
            length, limit = end - before - 1, unit.max_record_bytes
            if row == last and unit.fault is not None:
                yield row, Refusal("bad_json", f"{unit.fault}: {quoted(raw[:1000].strip(BLANK))}")
            elif len(raw) < length:  # the start alone is held
                yield row, too_large(length, limit, raw[:START_BYTES])
            elif length > limit and (size := size_of(raw, limit)) > limit:
                yield row, too_large(size, limit, raw[:START_BYTES])
            elif not raw.strip(BLANK):
                yield row, Refusal("bad_json", "nothing between two commas, or after the last one")
            else:
                yield row, parse(raw)

    def blocks(self) -> Iterator[Block]:
        """The same, about 1 MiB of elements at a time."""
        records = self.records()
        parts = self._unit.ends[: self._rows] // BLOCK_BYTES
        cuts = [*np.flatnonzero(np.diff(parts, prepend=-1)).tolist(), self._rows]
        for first, stop in pairwise(cuts):
            yield Block(np.arange(first, stop), [record for _, record in islice(records, stop - first)])


_HEADER = b"array\n"


def _digest(hasher: "hashlib._Hash", ends: NDArray[np.int64]) -> str:
    hasher.update(ends.astype("<i8").tobytes())
    return hasher.hexdigest()


# --- the boundary scanner ----------------------------------------------------------------------------------


@dataclass(slots=True)
class Scanner:
    """Finds, block by block, the commas between the elements of an array, and its end.

    A quote counts unless an odd run of backslashes stands before it; a bracket or comma counts where the
    number of quotes before it is even; a comma is a boundary where one bracket is open. Brackets are not matched
    by kind.
    """

    depth: int = 1
    in_string: bool = False
    escaped: bool = False
    """The next byte follows an odd run of backslashes."""

    def scan(self, block: bytes) -> tuple[NDArray[np.int64], int | None]:
        """The boundaries in the next block of the file.

        Args:
            block: what follows the block before; not empty. The first follows the array's "[".

        Returns:
            int64 [n], where the commas between elements are in ``block``, in order, up to the array's end;
            and where the bracket is that closes the array, or None.
        """
        data = np.frombuffer(block, np.uint8)
        quotes = self._quotes(data)
        folded = data | _FOLD
        brackets = np.flatnonzero((folded == _OPEN) | (folded == _CLOSE))
        outside = _even(np.searchsorted(quotes, brackets), self.in_string)
        brackets = brackets[outside]
        steps = np.where(folded[brackets] == _OPEN, 1, -1)
        depths = self.depth + np.cumsum(steps)
        closed = np.flatnonzero(depths == 0)
        end = int(brackets[closed[0]]) if len(closed) else None
        commas = self._commas(data, quotes, brackets, depths, len(block) if end is None else end)
        if end is None:
            self.depth = int(depths[-1]) if len(depths) else self.depth
            self.in_string ^= len(quotes) % 2 == 1
        return commas, end

    def _quotes(self, data: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Where the quotes are that open or close a string; moves ``escaped`` on to the end of the block."""
        quotes = np.flatnonzero(data == _QUOTE)
        backslashes = np.flatnonzero(data == _BACKSLASH)
        starts = np.flatnonzero(np.diff(backslashes, prepend=-2) != 1)  # of runs: [3, 4, 9] gives [0, 2]
        firsts = backslashes[starts]
        lengths = np.diff(starts, append=len(backslashes))
        after = firsts + lengths  # what follows each run; a run at the very start may go on from the block before
        odd = lengths % 2 == 1
        if self.escaped:
            if len(firsts) and firsts[0] == 0:
                odd[0] = not odd[0]
            else:
                after, odd = np.concatenate(([0], after)), np.concatenate(([True], odd))
        escaped = after[odd]
        self.escaped = bool(len(escaped)) and int(escaped[-1]) == len(data)
        return quotes[~np.isin(quotes, escaped, assume_unique=True)] if len(escaped) else quotes

    def _commas(
        self,
        data: NDArray[np.uint8],
        quotes: NDArray[np.int64],
        brackets: NDArray[np.int64],
        depths: NDArray[np.int64],
        stop: int,
    ) -> NDArray[np.int64]:
        """The commas outside strings before ``stop`` where one bracket is open."""
        commas = np.flatnonzero(data[:stop] == _COMMA)
        # which bracket is the last before each comma; most commas lie deeper, and are gone after this
        last = np.searchsorted(brackets, commas)
        commas = commas[np.concatenate(([self.depth], depths))[last] == 1]
        outside = _even(np.searchsorted(quotes, commas), self.in_string)
        between: NDArray[np.int64] = commas[outside]
        return between


def _even(counts: NDArray[np.int64], odd_before: bool) -> NDArray[np.bool_]:
    """Whether the number of quotes before is even, with one more where a string was open already."""
    even: NDArray[np.bool_] = (counts + odd_before) % 2 == 0
    return even


# --- the cutter --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Stretch:
    """The content of a unit; see ArrayUnit."""

    data: bytes
    ends: NDArray[np.int64]
    fault: str | None
    digest: str | None


class _Growing:
    """A stretch in the making; of an element over the limit only the start is held, the rest is hashed."""

    def __init__(self, limit: int) -> None:
        self.length = 0
        self.fault: str | None = None
        self._limit = limit
        self._data = bytearray()
        self._ends: list[NDArray[np.int64]] = []
        self._last = 0  # where the element starts that has not ended yet
        self._hasher: hashlib._Hash | None = None

    def take(self, data: bytes, ends: NDArray[np.int64]) -> None:
        """Take the file's next bytes, in which elements end at ``ends``."""
        if len(ends):
            self._ends.append(ends + self.length)
            self._last = int(ends[-1]) + self.length + 1
        self.length += len(data)
        if self._hasher is not None:
            self._hasher.update(data)
            return
        self._data += data
        if self.length - self._last > self._limit + AROUND_BYTES:
            self._hasher = hashlib.sha256(_HEADER + self._data)
            del self._data[self._last + START_BYTES :]

    def end_element(self, at: int | None = None) -> None:
        """The element that has not ended yet ends here, or at ``at``."""
        self._ends.append(np.array([self.length if at is None else at], np.int64))
        self._last = int(self._ends[-1][0]) + 1

    @property
    def begun(self) -> bool:
        """Whether an element has ended."""
        return bool(self._ends)

    @property
    def blank(self) -> bool:
        """Whether the element that has not ended yet is only white space so far."""
        return self._hasher is None and not self._data[self._last :].strip(BLANK)

    def stretch(self) -> _Stretch:
        ends = np.concatenate(self._ends)
        digest = _digest(self._hasher, ends) if self._hasher is not None else None
        return _Stretch(bytes(self._data), ends, self.fault, digest)


def _stretches(blocks: Iterator[bytes], unit_bytes: int, max_record_bytes: int) -> Iterator[_Stretch]:
    """The content of unit 0, 1, … of an array.

    Args:
        blocks: what follows the array's "[".
        unit_bytes: a unit ends at the first comma between elements so far from its start or farther.
        max_record_bytes: longer elements need not be held. (One within a unit is: that takes no more memory.)
    """
    limit = max(unit_bytes, max_record_bytes, START_BYTES)
    scanner = Scanner()
    growing = _Growing(limit)
    first = True  # no comma yet in the whole array
    for block in blocks:
        commas, end = scanner.scan(block)
        first = first and len(commas) == 0
        taken = 0
        while True:
            full = int(np.searchsorted(commas, taken + unit_bytes - growing.length))
            if full == len(commas):
                break
            comma = int(commas[full])
            growing.take(block[taken:comma], commas[: full + 1] - taken)
            yield growing.stretch()
            growing = _Growing(limit)
            taken, commas = comma + 1, commas[full + 1 :]
        growing.take(block[taken:end], commas - taken)
        if end is not None:
            if not (first and growing.blank):
                growing.end_element()
            _take_rest(growing, block[end:], blocks)
            break
    else:
        inside = scanner.in_string or scanner.depth > 1 or growing.blank
        growing.fault = "the array is not closed: cut short?"
        growing.end_element()
        if not inside:  # the last element is whole
            growing.end_element(growing.length + 1)
    if growing.begun:
        yield growing.stretch()


def _take_rest(growing: _Growing, rest: bytes, blocks: Iterator[bytes]) -> None:
    """What follows the last element, from its closing bracket: all but white space is one more, faulty."""
    nothing = np.zeros(0, np.int64)
    bracket = rest[:1]
    follows = False
    for block in chain([rest[1:]], blocks):
        data = block if follows else block.lstrip(BLANK)
        if data and not follows:
            follows = True
            growing.take(bracket, nothing)  # it stands between two elements, as a comma does
        growing.take(data, nothing)
    if bracket != b"]":
        growing.fault = f"the array is closed by {bracket.decode()} instead of ]"
    elif follows:
        growing.fault = "more after the array's ] (one value on a line? then name it .jsonl)"
    if growing.fault is not None:
        if not follows:
            growing.take(bracket, nothing)
        growing.end_element()


def _after_bracket(path: Path, blocks: Iterator[bytes]) -> Iterator[bytes]:
    """What follows the array's "[", which was there when the file was found."""
    start = b""
    while len(start) < len(BOM) and (block := next(blocks, b"")):
        start += block
    start = start.removeprefix(BOM).lstrip(BLANK)
    while not start:
        block = next(blocks, b"")
        if not block:
            raise changed(path)
        start = block.lstrip(BLANK)
    if start[:1] != b"[":
        raise changed(path)
    if len(start) > 1:
        yield start[1:]
    yield from blocks
