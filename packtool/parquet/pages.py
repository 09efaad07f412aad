"""The headers of a column chunk's pages become how much the chunk takes once it is decoded, at most.

The footer's sizes are those of encoded values, and a thousand of these can stand for a gigabyte. pyarrow decodes what
the headers of the pages say, whatever the footer says, so they are what bounds it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from packtool.parquet.footer import ColumnChunk
from packtool.parquet.thrift import I32, STRUCT, Thrift

_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3  # types of pages
_HEADER_FIELDS = {5: _DATA, 7: _DICTIONARY, 8: _DATA_V2}
_PLAIN_DICTIONARY, _DELTA_BYTE_ARRAY, _RLE_DICTIONARY = 2, 7, 8  # encodings
_CODECS = {1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}  # 0: none
_HEADER = 128  # bytes, of most of them
_LONGEST_HEADER = 1 << 24  # as pyarrow has it; statistics are in them
_DECODED, _STORED = 2, 3  # uncompressed_page_size, compressed_page_size


class Page(NamedTuple):
    """A page of values, or of a dictionary."""

    kind: int
    values: int
    rows: int | None
    """Of the second version of data pages alone."""
    encoding: int
    """Of the values."""
    level_encoding: int
    """Of the repetition levels."""
    level_bytes: int | None
    """Of the repetition levels, which the second version does not compress; None: of the first version."""
    decoded: int
    """Bytes without compression."""
    stored: int
    """Bytes in the file."""
    start: int
    """The first of them."""


@dataclass(frozen=True, slots=True)
class ChunkSize:
    """What the headers of a column chunk's pages say."""

    values: int
    """Nulls and empty lists counted."""
    rows: int | None
    """None where a page says nothing of its rows: those of the first version do not."""
    page_bytes: int
    """Of all data pages, without compression, encoded."""
    largest_page: int
    """The most bytes in one, that of the dictionary included."""
    usual_text: int
    """Of a column of texts: about how many bytes they have."""
    most_text: int
    """The most they can have."""
    longest_text: int
    """The most that one of them can have."""
    of_dictionary: int
    """How many values are numbers of entries of the dictionary."""
    dictionary_bytes: int
    """Those of its texts together."""


def chunk_size(read: Callable[[int, int], bytes], chunk: ColumnChunk) -> ChunkSize:
    """Read the headers of a chunk's pages; nothing is decoded.

    Args:
        read: gives so many bytes of the file from a place, or fewer where it ends.
        chunk: from the footer.

    Raises:
        ValueError: they are damaged, or do not agree with the footer.
    """
    values = page_bytes = largest = usual_text = most_text = longest_text = of_dictionary = 0
    rows: int | None = 0
    dictionary = Page(_DICTIONARY, 0, None, 0, 0, None, 0, 0, 0)
    for page in _pages(read, chunk):
        largest = max(largest, page.decoded)
        if page.kind == _DICTIONARY:
            dictionary = page
            continue
        values += page.values
        page_bytes += page.decoded
        rows = None if rows is None or page.rows is None else rows + page.rows
        # Of a dictionary's entries one may have all the bytes but the four before each, and be the only one in use.
        usual = most = longest = page.decoded
        if page.encoding in (_PLAIN_DICTIONARY, _RLE_DICTIONARY):
            longest = _text_bytes(dictionary)
            of_dictionary += page.values
            usual, most = page.values * longest // max(1, dictionary.values), page.values * longest
        elif page.encoding == _DELTA_BYTE_ARRAY:  # each may begin as the one before
            most = page.values * longest
        usual_text += usual
        most_text += most
        longest_text = max(longest_text, longest)
    if values != chunk.values:
        raise ValueError(f"its pages have {values} values, and the footer says {chunk.values}")
    return ChunkSize(
        values,
        rows,
        page_bytes,
        largest,
        usual_text,
        most_text,
        longest_text,
        of_dictionary,
        _text_bytes(dictionary),
    )


def _text_bytes(dictionary: Page) -> int:
    return max(0, dictionary.decoded - 4 * dictionary.values)


def data_pages(read: Callable[[int, int], bytes], chunk: ColumnChunk) -> Iterator[Page]:
    """The pages of values; raises as ``chunk_size``."""
    return (page for page in _pages(read, chunk) if page.kind != _DICTIONARY)


def dictionary_page(read: Callable[[int, int], bytes], chunk: ColumnChunk) -> Page | None:
    """That of the dictionary, if there is one; raises as ``chunk_size``."""
    return next((page for page in _pages(read, chunk) if page.kind == _DICTIONARY), None)


def content(read: Callable[[int, int], bytes], chunk: ColumnChunk, page: Page) -> bytes:
    """A page without compression: of a dictionary, or of values in the first version of such pages.

    Raises:
        ValueError: it is damaged, or compressed in a way that is not known.
    """
    data = read(page.start, page.stored)
    if chunk.codec == 0:
        return data
    if chunk.codec not in _CODECS:
        raise ValueError(f"compressed with codec {chunk.codec}, not known")
    try:
        return bytes(pa.Codec(_CODECS[chunk.codec]).decompress(data, page.decoded, asbytes=True))
    except (OSError, pa.ArrowException) as error:
        raise ValueError(str(error)) from None


def _pages(read: Callable[[int, int], bytes], chunk: ColumnChunk) -> Iterator[Page]:
    at, end = chunk.start, chunk.start + chunk.length
    while at < end:
        page, length = _header(read, at, end)
        if page is not None:
            yield page._replace(start=at + length - page.stored)
        at += length
    if at > end:
        raise ValueError("a page reaches past its end")


def _header(read: Callable[[int, int], bytes], at: int, end: int) -> tuple[Page | None, int]:
    """The page whose header is at a place, None for one without values; and how long it is with its header."""
    wanted = _HEADER
    while True:
        try:
            return _parsed(read(at, min(wanted, end - at)))
        except IndexError:
            if wanted >= min(end - at, _LONGEST_HEADER):
                raise ValueError("the header of a page ends early") from None
        wanted *= 16


def _parsed(header: bytes) -> tuple[Page | None, int]:
    thrift = Thrift(header)
    numbers = {1: -1, _DECODED: -1, _STORED: -1}
    inner: dict[int, dict[int, int]] = {}
    try:
        for field, kind in thrift.fields():
            if field in numbers and kind == I32:
                numbers[field] = thrift.integer()
            elif field in _HEADER_FIELDS and kind == STRUCT:
                inner[_HEADER_FIELDS[field]] = _integers(thrift)
            else:
                thrift.skip(kind)
    except RecursionError:
        raise ValueError("the header of a page is nested too deeply") from None
    kind, decoded, stored = numbers.values()
    if decoded < 0 or stored < 0:
        raise ValueError("a page has no size")
    if kind not in (_DATA, _DICTIONARY, _DATA_V2):
        return None, thrift.at + stored
    fields = inner.get(kind, {})
    values = fields.get(1, -1)
    rows = fields.get(3, -1) if kind == _DATA_V2 else None
    if values < 0 or (rows is not None and rows < 0):
        raise ValueError("a page does not say how many values it has")
    encoding = fields.get(4 if kind == _DATA_V2 else 2, -1)
    level_bytes = fields.get(6, 0) if kind == _DATA_V2 else None
    return Page(kind, values, rows, encoding, fields.get(4, -1), level_bytes, decoded, stored, 0), thrift.at + stored


def _integers(thrift: Thrift) -> dict[int, int]:
    found = {}
    for field, kind in thrift.fields():
        if kind == I32:
            found[field] = thrift.integer()
        else:
            thrift.skip(kind)
    return found
