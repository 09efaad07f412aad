"""Files of lines (JSONL, plain or compressed) become units of whole lines, and units become records.

Unit ``k`` owns the lines that *start* in bytes [k x unit_bytes, (k + 1) x unit_bytes) of the decompressed
file, so it gives the same units, digests and rows whether it is compressed or not. A unit may own no line.
"""

import hashlib
import io
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from packtool.errors import Refusal
from packtool.readers.decompress import read_blocks
from packtool.readers.parsing import AROUND_BYTES, BLANK, START_BYTES, parse, parse_all, size_of, too_large
from packtool.readers.units import BLOCK_BYTES, Block, Record, Unit, changed, opened, read_exactly
from packtool.sources import BOM, Source

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class LinesUnit(Unit):
    """The lines that start in bytes [start, stop) of a plain file; a worker reads them from there."""

    start: int
    stop: int
    size: int
    """Of the whole file, when it was cut."""
    max_record_bytes: int


@dataclass(frozen=True, slots=True)
class LinesContent:
    """The exact bytes of whole lines."""

    data: bytes
    dropped: int
    """How many bytes of the last line, which is too large, follow ``data`` without being held."""
    digest: str | None
    """Of everything, where bytes were dropped."""


@dataclass(frozen=True, slots=True)
class PayloadUnit(Unit):
    """Lines that the parent took out of a compressed file and sends along."""

    content: LinesContent
    max_record_bytes: int


def cut_plain(source: Source, source_index: int, unit_bytes: int, max_record_bytes: int) -> Iterator[Unit]:
    """Cut a plain file by its size alone."""
    with opened(source.path) as file:
        size = os.fstat(file.fileno()).st_size
    for index, start in enumerate(range(0, size, unit_bytes)):
        stop = min(start + unit_bytes, size)
        yield LinesUnit(
            source=source_index,
            index=index,
            path=source.path,
            max_records=None,
            start=start,
            stop=stop,
            size=size,
            max_record_bytes=max_record_bytes,
        )


def cut_compressed(source: Source, source_index: int, unit_bytes: int, max_record_bytes: int) -> Iterator[Unit]:
    """Cut the decompressed bytes of a file as ``cut_plain`` would cut them."""
    blocks = read_blocks(source.path, source.compression)
    for index, content in enumerate(_cut_stream(blocks, unit_bytes, max_record_bytes)):
        yield PayloadUnit(
            source=source_index,
            index=index,
            path=source.path,
            max_records=None,
            content=content,
            max_record_bytes=max_record_bytes,
        )


class LinesReader:
    """The lines of one unit."""

    columnar = False

    def __init__(self, unit: LinesUnit | PayloadUnit) -> None:
        """Read the unit's bytes.

        Raises:
            BadData: the file vanished, cannot be read, or is not of the size it had when it was cut.
        """
        self._first = unit.index == 0
        self._limit = unit.max_record_bytes
        self._content = unit.content if isinstance(unit, PayloadUnit) else _read(unit)
        if unit.max_records is not None:
            self._content = self._first_records(unit.max_records)
        self._rows: int | None = None

    @property
    def digest(self) -> str:
        """sha256 of the lines' bytes, and of whether they begin the file."""
        if self._content.digest is not None:
            return self._content.digest
        hasher = _hasher(self._first)
        hasher.update(self._content.data)
        return hasher.hexdigest()

    @property
    def rows(self) -> int:
        """Lines, with blank ones and a last one without a newline."""
        if self._rows is None:
            data = self._content.data
            self._rows = data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
        return self._rows

    @property
    def size(self) -> int:
        """Bytes of the lines."""
        return len(self._content.data) + self._content.dropped

    def count(self) -> int:
        """Lines that are not blank."""
        large_row = self._large_row
        return sum(1 for row, line in enumerate(self._lines()) if row == large_row or not self._blank(line))

    def records(self) -> Iterator[tuple[int, Record | Refusal]]:
        """Each line that is not blank, parsed."""
        large_row = self._large_row
        for row, line in enumerate(self._lines()):
            if (record := self._record(row, line, large_row)) is not None:
                yield row, record

    def blocks(self) -> Iterator[Block]:
        """The same, about 1 MiB of lines at a time."""
        large_row = self._large_row
        source = self._lines()
        first = 0
        while lines := source.readlines(BLOCK_BYTES):
            rows = np.arange(first, first + len(lines))
            first += len(lines)
            if max(map(len, lines)) > self._limit or large_row in range(first - len(lines), first):
                # what is refused for its length may be blank, and is not parsed
                read = [self._record(row, line, large_row) for row, line in zip(rows.tolist(), lines, strict=True)]
                kept = [place for place, record in enumerate(read) if record is not None]
                records = [record for record in read if record is not None]
            elif any(map(bytes.isspace, lines)):
                kept = [place for place, line in enumerate(lines) if line.strip(BLANK)]
                records = parse_all([lines[place] for place in kept])
            else:
                yield Block(rows, parse_all(lines))
                continue
            yield Block(rows[kept], records)
        if _bom(self._content.data, self._first) < len(self._content.data):
            self._rows = first  # counting them anew would take a fiftieth of the time of a unit of text

    @property
    def _large_row(self) -> int:
        """The row of the line that is not held; -1 where all are."""
        return self.rows - 1 if self._content.dropped else -1

    def _record(self, row: int, line: bytes, large_row: int) -> Record | Refusal | None:
        """What a line holds; None: nothing."""
        if row == large_row:
            return too_large(len(line) + self._content.dropped, self._limit, line[:START_BYTES])
        if len(line) > self._limit and (length := size_of(line, self._limit)) > self._limit:
            return too_large(length, self._limit, line[:START_BYTES])
        if line == b"\n":
            return None  # a file of nothing else should not take a second a million
        record = parse(line)
        return record if isinstance(record, dict) or line.strip(BLANK) else None

    def _lines(self) -> io.BytesIO:
        """Each line with its newline; only ``\\n`` ends one. The file's BOM is left out."""
        lines = io.BytesIO(self._content.data)
        lines.seek(_bom(self._content.data, self._first))
        return lines

    def _blank(self, line: bytes) -> bool:
        # a line that may not be held is a record whatever it holds, as its end may not be known
        return len(line) <= self._limit + AROUND_BYTES and not line.strip(BLANK)

    def _first_records(self, count: int) -> LinesContent:
        """The content up to the end of its ``count``-th line that is not blank."""
        data = self._content.data
        end = _bom(data, self._first)
        for line in self._lines():
            if count == 0:
                return LinesContent(data[:end], 0, None)
            end += len(line)
            count -= not self._blank(line)
        return self._content


def _bom(data: bytes | bytearray, first: bool) -> int:
    """How many bytes at the start are a byte order mark."""
    return len(BOM) if first and data.startswith(BOM) else 0


def _hasher(first: bool) -> "hashlib._Hash":
    # only at the start of a file is a BOM no part of the text, so the same bytes are not the same content
    return hashlib.sha256(b"lines, the first of the file\n" if first else b"lines\n")


# --- from a plain file -------------------------------------------------------------------------------------


def _read(unit: LinesUnit) -> LinesContent:
    with opened(unit.path) as file:
        before = min(unit.start, 1)  # the byte before says whether a line starts here
        data = read_exactly(file, unit.start - before, unit.stop - unit.start + before)
        if len(data) != unit.stop - unit.start + before:
            raise changed(unit.path)
        if before:
            newline = data.find(b"\n")
            first_line = newline + 1 if newline >= 0 else len(data)
        else:
            first_line = 0
        growing = _Growing(unit.index == 0, memoryview(data)[first_line:], unit.max_record_bytes)
        position = unit.stop
        while growing.data and not growing.complete and position < unit.size:
            block = read_exactly(file, position, min(_BLOCK, unit.size - position))
            if not block:
                raise changed(unit.path)
            position += growing.add(block)
        if os.fstat(file.fileno()).st_size != unit.size:
            raise changed(unit.path)
    return growing.content()


class _Growing:
    """Lines whose last one may not be complete yet; what it takes over the limit is hashed, not held."""

    def __init__(self, first: bool, data: bytes | bytearray | memoryview, max_record_bytes: int) -> None:
        self.data = bytearray(data)
        self.complete = self.data.endswith(b"\n")
        self._first = first
        self._limit = max_record_bytes + AROUND_BYTES
        self._last = self.data.rfind(b"\n") + 1  # where the last line starts
        self._dropped = 0
        self._hasher: hashlib._Hash | None = None

    def add(self, block: bytes) -> int:
        """Take the bytes that belong to the last line; returns how many those are."""
        newline = block.find(b"\n")
        taken = newline + 1 if newline >= 0 else len(block)
        self.complete = newline >= 0
        if self._hasher is None:
            self.data += memoryview(block)[:taken]
            start = self._last or _bom(self.data, self._first)
            if len(self.data) - start > self._limit:
                self._drop(start + START_BYTES)
        else:
            self._hasher.update(memoryview(block)[:taken])
            self._dropped += taken - self.complete
        return taken

    def _drop(self, kept: int) -> None:
        self._hasher = _hasher(self._first)
        self._hasher.update(self.data)
        self._dropped = len(self.data) - self.complete - kept
        del self.data[kept:]

    def content(self) -> LinesContent:
        digest = self._hasher.hexdigest() if self._hasher is not None else None
        return LinesContent(bytes(self.data), self._dropped, digest)


# --- from a stream -----------------------------------------------------------------------------------------


def _cut_stream(blocks: Iterable[bytes], unit_bytes: int, max_record_bytes: int) -> Iterator[LinesContent]:
    """The content of unit 0, 1, … of the bytes that ``blocks`` give; the last one when they end."""
    index = 0
    position = 0  # in the file, of the first pending byte: a line starts there, unless one is growing
    pending = bytearray()
    growing: _Growing | None = None
    for block in blocks:
        pending += block
        while True:
            if growing is None:
                ahead = (index + 1) * unit_bytes - position
                if ahead <= 0:  # the line before went on past this whole unit
                    yield _NOTHING
                    index += 1
                    continue
                if len(pending) < ahead:
                    break
                growing = _Growing(index == 0, pending[:ahead], max_record_bytes)
                del pending[:ahead]
                position += ahead
            if not growing.complete:
                taken = growing.add(bytes(pending))
                del pending[:taken]
                position += taken
            if not growing.complete:
                break
            yield growing.content()
            index += 1
            growing = None
    position += len(pending)
    if growing is not None or pending:
        yield (growing or _Growing(index == 0, pending, max_record_bytes)).content()
        index += 1
    while index * unit_bytes < position:
        yield _NOTHING
        index += 1


_NOTHING = LinesContent(b"", 0, None)
