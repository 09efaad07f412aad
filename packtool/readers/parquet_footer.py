"""The footer of a Parquet file becomes the places of its row groups: what is needed to cut and to digest it.

pyarrow knows these too, but a damaged place makes it end the process where it is asked for it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

# kinds of values in Thrift's compact protocol
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group of a file."""

    rows: int
    decoded_bytes: int
    """Of all its columns, as the footer has it."""
    chunks: tuple[tuple[int, int], ...]
    """For each column the first byte in the file, and how many follow."""

    @property
    def stored_bytes(self) -> int:
        """Of all its columns in the file."""
        return sum(length for _, length in self.chunks)


def row_groups(footer: bytes, data_bytes: int) -> list[RowGroup]:
    """Read the row groups out of a footer.

    Args:
        footer: FileMetaData in Thrift's compact protocol (see parquet.thrift of apache/parquet-format).
        data_bytes: how many bytes stand before the footer; a row group has to lie inside them.

    Raises:
        ValueError: it is damaged.
    """
    groups: list[RowGroup] = []
    try:
        thrift = _Thrift(footer)
        for field, kind in thrift.fields():
            if (field, kind) == (4, _LIST):
                groups = [_row_group(thrift) for _ in thrift.elements(_STRUCT)]
            else:
                thrift.skip(kind)
    except (IndexError, RecursionError):
        raise ValueError("it ends early") from None
    for number, group in enumerate(groups):
        inside = all(start >= 0 and 0 <= length <= data_bytes - start for start, length in group.chunks)
        if not inside or group.rows < 0:
            raise ValueError(f"row group {number} does not lie inside the file")
    if sum(group.stored_bytes for group in groups) > data_bytes:
        raise ValueError("row groups overlap")
    return groups


def _row_group(thrift: "_Thrift") -> RowGroup:
    numbers = {2: 0, 3: 0}  # total_byte_size, num_rows
    chunks: list[tuple[int, int]] = []
    for field, kind in thrift.fields():
        if (field, kind) == (1, _LIST):
            chunks = [_column_chunk(thrift) for _ in thrift.elements(_STRUCT)]
        elif field in numbers and kind == _I64:
            numbers[field] = thrift.integer()
        else:
            thrift.skip(kind)
    return RowGroup(rows=numbers[3], decoded_bytes=numbers[2], chunks=tuple(chunks))


def _column_chunk(thrift: "_Thrift") -> tuple[int, int]:
    numbers = {7: -1, 9: 0, 11: 0}  # total_compressed_size, data_page_offset, dictionary_page_offset
    for field, kind in thrift.fields():
        if (field, kind) != (3, _STRUCT):
            thrift.skip(kind)
            continue
        for inner, inner_kind in thrift.fields():
            if inner in numbers and inner_kind == _I64:
                numbers[inner] = thrift.integer()
            else:
                thrift.skip(inner_kind)
    # an offset of 0 is none: a column without a dictionary, or without a page
    return min((at for at in (numbers[9], numbers[11]) if at != 0), default=0), numbers[7]


class _Thrift:
    """Values of Thrift's compact protocol, read one after the other; an IndexError is the end of the bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def fields(self) -> Iterator[tuple[int, int]]:
        """Number and kind of each field of a struct; the caller reads or skips its value before the next one."""
        field = 0
        while (head := self._byte()) != 0:
            field = field + (head >> 4) if head >> 4 else self.integer()
            yield field, head & 15

    def elements(self, kind: int) -> range:
        """The places of a list whose elements are of a kind; the caller reads each of them."""
        size, found = self._list()
        if size and found != kind:
            raise ValueError(f"a list of kind {found}, not {kind}")
        return range(size)

    def integer(self) -> int:
        """A signed number of 16, 32 or 64 bits."""
        number = self._unsigned()
        return (number >> 1) ^ -(number & 1)

    def skip(self, kind: int) -> None:
        """Pass over a value."""
        if kind in (_I16, _I32, _I64):
            self._unsigned()
        elif kind == _BINARY:
            length = self._unsigned()
            self._pass(length)
        elif kind == _STRUCT:
            for _, inner in self.fields():
                self.skip(inner)
        elif kind in (_LIST, _SET):
            size, inner = self._list()
            for _ in range(size):
                self._skip_element(inner)
        elif kind == _MAP:
            size = self._unsigned()
            kinds = self._byte() if size else 0
            for _ in range(size):
                self._skip_element(kinds >> 4)
                self._skip_element(kinds & 15)
        elif kind == _BYTE:
            self._pass(1)
        elif kind == _DOUBLE:
            self._pass(8)
        elif kind not in (_TRUE, _FALSE):  # their kind is their value
            raise ValueError(f"a value of unknown kind {kind}")

    def _skip_element(self, kind: int) -> None:
        if kind in (_TRUE, _FALSE):
            self._pass(1)
        else:
            self.skip(kind)

    def _list(self) -> tuple[int, int]:
        head = self._byte()
        return (head >> 4 if head >> 4 != 15 else self._unsigned()), head & 15

    def _unsigned(self) -> int:
        number = shift = 0
        while True:
            byte = self._byte()
            number |= (byte & 127) << shift
            if byte < 128:
                return number
            shift += 7
            if shift > 63:
                raise ValueError("a number of more than 64 bits")

    def _byte(self) -> int:
        byte = self._data[self._at]
        self._at += 1
        return byte

    def _pass(self, length: int) -> None:
        self._at += length
        if self._at > len(self._data):
            raise IndexError
