"""Values of Thrift's compact protocol, which Parquet writes its footer and the headers of its pages in."""

from collections.abc import Iterator

# kinds of values
TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)


class Thrift:
    """Values of Thrift's compact protocol, read one after the other; an IndexError is the end of the bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0
        """Of the next byte."""

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
        if kind in (I16, I32, I64):
            self._unsigned()
        elif kind == BINARY:
            length = self._unsigned()
            self._pass(length)
        elif kind == STRUCT:
            for _, inner in self.fields():
                self.skip(inner)
        elif kind in (LIST, SET):
            size, inner = self._list()
            for _ in range(size):
                self._skip_element(inner)
        elif kind == MAP:
            size = self._unsigned()
            kinds = self._byte() if size else 0
            for _ in range(size):
                self._skip_element(kinds >> 4)
                self._skip_element(kinds & 15)
        elif kind == BYTE:
            self._pass(1)
        elif kind == DOUBLE:
            self._pass(8)
        elif kind not in (TRUE, FALSE):  # their kind is their value
            raise ValueError(f"a value of unknown kind {kind}")

    def _skip_element(self, kind: int) -> None:
        if kind in (TRUE, FALSE):
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
        byte = self._data[self.at]
        self.at += 1
        return byte

    def _pass(self, length: int) -> None:
        self.at += length
        if self.at > len(self._data):
            raise IndexError
