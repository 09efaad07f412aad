"""Arrow IPC files and streams become units of consecutive record batches, and units become records.

A batch is read, not mapped into memory: a file that shrinks would end a process that has it mapped.
``datasets`` writes streams.
"""

import hashlib
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from packtool.errors import Refusal
from packtool.readers.columns import record_lists, rows_at_once
from packtool.readers.units import Block, Record, Unit, changed, damaged, identity, opened
from packtool.sources import Source

_FILE_MAGIC = b"ARROW1"


@dataclass(frozen=True, slots=True)
class ArrowUnit(Unit):
    """Record batches [first, last) of a file."""

    first: int
    last: int
    rows: int
    position: int | None
    """Where the first of them starts in a stream, if it can be read from there; None: a reader of the stream
    has to pass all batches before it."""
    size: int
    """Of the whole file, in bytes, when it was cut."""
    max_record_bytes: int


def cut(source: Source, source_index: int, unit_bytes: int, max_record_bytes: int) -> Iterator[Unit]:
    """Cut a file by the sizes of its batches in memory.

    Raises:
        BadData: it is no Arrow file, or damaged; units before the fault have been given.
    """
    with _opened(source.path) as (file, size):
        index = first = rows = taken = count = 0
        start: int | None = None
        limit = max_record_bytes
        for count, (batch, position) in enumerate(_all_batches(source.path, file), 1):
            start = position if count == first + 1 else start
            rows += batch.num_rows
            taken += batch.get_total_buffer_size()  # nbytes would follow offsets not checked yet
            if taken >= unit_bytes:
                yield ArrowUnit(source_index, index, source.path, None, first, count, rows, start, size, limit)
                index, first, rows, taken = index + 1, count, 0, 0
        if count > first:
            yield ArrowUnit(source_index, index, source.path, None, first, count, rows, start, size, limit)


def column_types(source: Source) -> dict[str, pa.DataType]:
    """Name and Arrow type of each column of a file.

    Raises:
        BadData: it is no Arrow file, or damaged.
    """
    with _opened(source.path) as (file, _), _faults_named(source.path, "schema"):
        schema = (pa.ipc.open_file(file) if _has_footer(file) else pa.ipc.open_stream(file)).schema
        return dict(zip(schema.names, schema.types, strict=True))


class ArrowReader:
    """The rows of one unit."""

    columnar = True

    def __init__(self, unit: ArrowUnit, columns: Collection[str] | None) -> None:
        self._unit = unit
        self._columns = columns
        self._rows = unit.rows if unit.max_records is None else min(unit.max_records, unit.rows)
        self._digest: str | None = None
        self._read: tuple[int, int, int] | None = None
        """The file as it was when the digest was made."""

    @property
    def digest(self) -> str:
        """sha256 of the rows, written anew as a stream: form, padding and compression of the file do not matter.

        Bits that stand for no row may: a table that was sliced before it was written can have another digest.
        """
        if self._digest is None:
            self._read = identity(self._unit.path)
            hasher = hashlib.sha256(b"arrow\n")
            writer: pa.RecordBatchStreamWriter | None = None
            for piece in self._pieces():
                writer = writer or pa.ipc.new_stream(pa.PythonFile(_Sink(hasher), mode="w"), piece.schema)
                writer.write_batch(piece)
            if writer is not None:
                writer.close()
            self._digest = hasher.hexdigest()
        return self._digest

    @property
    def rows(self) -> int:
        """Rows of the table."""
        return self._rows

    @property
    def size(self) -> int:
        """Not known: batches may be compressed one by one."""
        return 0

    def count(self) -> int:
        """Every row is a record."""
        return self._rows

    def records(self) -> Iterator[tuple[int, Record | Refusal]]:
        """Each row, with the columns asked for that the file has."""
        for block in self.blocks():
            yield from zip(block.rows.tolist(), block.records, strict=True)

    def blocks(self) -> Iterator[Block]:
        """The same, as many at a time as are taken out of the table at once."""
        row = 0
        for piece in self._pieces():
            for records in record_lists(piece, self._columns, self._unit.max_record_bytes):
                yield Block(np.arange(row, row + len(records)), records)
                row += len(records)
        if self._read and identity(self._unit.path) != self._read:
            raise changed(self._unit.path)  # the digest may be of other rows

    def _pieces(self) -> Iterator[pa.RecordBatch]:
        """The unit's rows, a few at a time."""
        unit = self._unit
        left = self._rows
        with _opened(unit.path, unit.size) as (file, _):
            for index, batch in enumerate(_unit_batches(file, unit), unit.first):
                with _faults_named(unit.path, f"record batch {index}"):
                    for column in batch.columns:
                        _check(column)
                step = rows_at_once(batch.num_rows, batch.get_total_buffer_size())
                for start in range(0, min(batch.num_rows, left), step):
                    yield batch.slice(start, min(step, left - start))
                left -= min(batch.num_rows, left)
                if left == 0:
                    return


class _Sink:
    """A file for pyarrow to write to that only hashes."""

    closed = False

    def __init__(self, hasher: "hashlib._Hash") -> None:
        self._hasher = hasher

    def write(self, data: bytes) -> int:
        self._hasher.update(data)
        return len(data)

    def flush(self) -> None: ...

    def close(self) -> None: ...


def _check(array: pa.Array) -> None:
    """Refuse what reaches outside its buffers, which pyarrow takes on trust; bad UTF-8 is left to its row.

    Raises:
        pa.ArrowInvalid: the array is damaged.
    """
    array.validate()
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        if "UTF8" not in str(error):
            raise
        _check_parts(array, error)


def _check_parts(array: pa.Array, found: pa.ArrowInvalid) -> None:
    """The rest of the full check, which stopped at bad UTF-8 somewhere inside."""
    kind = array.type
    if kind in _AS_BYTES:
        array.view(_AS_BYTES[kind]).validate(full=True)
    elif pa.types.is_struct(kind):
        for index in range(kind.num_fields):
            _check(array.field(index))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        offsets = array.offsets.to_numpy()
        if len(offsets) and (offsets[0] < 0 or offsets[-1] > len(array.values) or np.any(np.diff(offsets) < 0)):
            raise pa.ArrowInvalid("the offsets of a list lie outside its values")
        _check(array.values)
    elif pa.types.is_fixed_size_list(kind):
        _check(array.values)
    elif pa.types.is_dictionary(kind):
        places = array.indices.drop_null().to_numpy()
        if len(places) and (places.min() < 0 or places.max() >= len(array.dictionary)):
            raise pa.ArrowInvalid("an index lies outside its dictionary")
        _check(array.dictionary)
    else:
        raise found  # a kind of column that no format uses


_AS_BYTES = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}


def _all_batches(path: Path, file: pa.NativeFile) -> Iterator[tuple[pa.RecordBatch, int | None]]:
    """Each batch of a file and where a reader can take it up."""
    with _faults_named(path, "schema"):
        footer = pa.ipc.open_file(file) if _has_footer(file) else None
        stream = pa.ipc.open_stream(file) if footer is None else None
    if footer is not None:
        for index in range(footer.num_record_batches):
            with _faults_named(path, f"record batch {index}"):
                batch = footer.get_batch(index)
            yield batch, None
        return
    assert stream is not None
    seekable = not any(_has_dictionary(kind) for kind in stream.schema.types)
    index = 0
    while True:
        position = file.tell()
        with _faults_named(path, f"record batch {index}"):
            try:
                batch = stream.read_next_batch()
            except StopIteration:
                break
        yield batch, position if seekable else None
        index += 1
    # pyarrow ends each stream with a mark, and takes a file without one for whole
    if position == file.size():
        raise damaged(path, f"Arrow file, after {index} record batches", "the end of the stream is missing: cut short?")
    if file.tell() != file.size():
        raise damaged(path, f"Arrow file, after {index} record batches", "more follows the end of the stream")


def _unit_batches(file: pa.NativeFile, unit: ArrowUnit) -> Iterator[pa.RecordBatch]:
    with _faults_named(unit.path, f"record batches {unit.first} to {unit.last - 1}"):
        if _has_footer(file):
            footer = pa.ipc.open_file(file)
            yield from (footer.get_batch(index) for index in range(unit.first, unit.last))
        elif unit.position is not None:
            schema = pa.ipc.read_schema(pa.ipc.read_message(file))
            file.seek(unit.position)
            for _ in range(unit.first, unit.last):
                yield pa.ipc.read_record_batch(pa.ipc.read_message(file), schema)
        else:
            stream = pa.ipc.open_stream(file)
            for index in range(unit.last):
                batch = stream.read_next_batch()
                if index >= unit.first:
                    yield batch


def _has_dictionary(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return True
    return any(_has_dictionary(kind.field(index).type) for index in range(kind.num_fields))


def _has_footer(file: pa.NativeFile) -> bool:
    file.seek(0)
    start = file.read(len(_FILE_MAGIC))
    file.seek(0)
    return bool(start == _FILE_MAGIC)


@contextmanager
def _opened(path: Path, size: int | None = None) -> Iterator[tuple[pa.NativeFile, int]]:
    """The file and its size, which must be ``size`` where that is known."""
    with opened(path) as raw:
        now = os.fstat(raw.fileno()).st_size
    if size is not None and size != now:
        raise changed(path)
    with _faults_named(path, "start"):
        file = pa.OSFile(str(path))
    with file:
        yield file, now


@contextmanager
def _faults_named(path: Path, place: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, EOFError, OverflowError, UnicodeDecodeError) as error:
        raise damaged(path, f"Arrow file, {place}", str(error)) from error
