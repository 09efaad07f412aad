"""The footer of a Parquet file becomes the places of its row groups: what is needed to cut, digest and bound them.

pyarrow knows these too, but a damaged place makes it end the process where it is asked for it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from packtool.parquet.thrift import I32, I64, LIST, STRUCT, Thrift

_TAIL = 8  # the length of the footer, and the mark that ends the file


class ColumnChunk(NamedTuple):
    """A column of a row group; the footer's word for it."""

    start: int
    """The first byte in the file."""
    length: int
    """How many follow."""
    values: int
    """Nulls and empty lists counted."""
    codec: int
    """Of its pages, by the number that Parquet gives to it."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group of a file."""

    rows: int
    decoded_bytes: int
    """Of all its columns, as the footer has it, which says nothing of how large they are in memory."""
    chunks: tuple[ColumnChunk, ...]
    """In the order of the schema's leaves."""

    @property
    def stored_bytes(self) -> int:
        """Of all its columns in the file."""
        return sum(chunk.length for chunk in self.chunks)


def read_row_groups(read: Callable[[int, int], bytes], size: int) -> list[RowGroup]:
    """The row groups of a file.

    Args:
        read: gives so many bytes of the file from a place, or fewer where it ends.
        size: of the file, in bytes.

    Raises:
        ValueError: the footer is damaged.
    """
    end = size - _TAIL
    length = int.from_bytes(read(end, 4), "little") if end >= 0 else 0
    return row_groups(read(end - length, length) if length <= end else b"", end - length)


def row_groups(footer: bytes, data_bytes: int) -> list[RowGroup]:
    """Read the row groups out of a footer.

    Args:
        footer: FileMetaData in Thrift's compact protocol (see parquet.thrift of apache/parquet-format).
        data_bytes: how many bytes stand before the footer; a row group has to lie inside them.

    Raises:
        ValueError: it is damaged.
    """
    groups: list[RowGroup] = []
    rows = None
    try:
        thrift = Thrift(footer)
        for field, kind in thrift.fields():
            if (field, kind) == (4, LIST):
                groups = [_row_group(thrift) for _ in thrift.elements(STRUCT)]
            elif (field, kind) == (3, I64):
                rows = thrift.integer()
            else:
                thrift.skip(kind)
    except (IndexError, RecursionError):
        raise ValueError("it ends early") from None
    for number, group in enumerate(groups):
        inside = all(chunk.start >= 0 and 0 <= chunk.length <= data_bytes - chunk.start for chunk in group.chunks)
        if not inside or group.rows < 0:
            raise ValueError(f"row group {number} does not lie inside the file")
    if sum(group.stored_bytes for group in groups) > data_bytes:
        raise ValueError("row groups overlap")
    found = sum(group.rows for group in groups)
    if found != rows:
        raise ValueError(f"the row groups have {found} rows together, and the file says {rows}")
    return groups


def _row_group(thrift: Thrift) -> RowGroup:
    numbers = {2: 0, 3: 0}  # total_byte_size, num_rows
    chunks: list[ColumnChunk] = []
    for field, kind in thrift.fields():
        if (field, kind) == (1, LIST):
            chunks = [_column_chunk(thrift) for _ in thrift.elements(STRUCT)]
        elif field in numbers and kind == I64:
            numbers[field] = thrift.integer()
        else:
            thrift.skip(kind)
    return RowGroup(rows=numbers[3], decoded_bytes=numbers[2], chunks=tuple(chunks))


def _column_chunk(thrift: Thrift) -> ColumnChunk:
    # num_values, total_compressed_size, data_page_offset, dictionary_page_offset
    numbers = {5: -1, 7: -1, 9: 0, 11: 0}
    codec = 0
    for field, kind in thrift.fields():
        if (field, kind) != (3, STRUCT):
            thrift.skip(kind)
            continue
        for inner, inner_kind in thrift.fields():
            if inner in numbers and inner_kind == I64:
                numbers[inner] = thrift.integer()
            elif (inner, inner_kind) == (4, I32):
                codec = thrift.integer()
            else:
                thrift.skip(inner_kind)
    # an offset of 0 is none: a column without a dictionary, or without a page
    start = min((at for at in (numbers[9], numbers[11]) if at != 0), default=0)
    return ColumnChunk(start, numbers[7], numbers[5], codec)
