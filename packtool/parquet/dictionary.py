"""The dictionary of a column chunk becomes the length of its longest text."""

from collections.abc import Callable
from struct import Struct

from packtool.parquet.footer import ColumnChunk
from packtool.parquet.pages import content, dictionary_page

_LENGTH = Struct("<I").unpack_from
_MOST_ENTRIES = 1 << 20  # looked at, one by one; writers stop at a MiB of text


def longest_entry(read: Callable[[int, int], bytes], chunk: ColumnChunk) -> int:
    """Read the dictionary of a chunk of texts whose pages were found to be sound and not too large.

    Args:
        read: gives so many bytes of the file from a place.
        chunk: from the footer.

    Returns:
        Bytes, at least as many as the longest has.

    Raises:
        ValueError: it is damaged, or compressed in a way that is not known.
    """
    page = dictionary_page(read, chunk)
    if page is None:
        return 0
    if page.values > _MOST_ENTRIES:
        return page.decoded
    data = content(read, chunk, page)
    at = longest = 0
    for _ in range(page.values):
        if at + 4 > len(data):
            raise ValueError("its dictionary ends early")
        (length,) = _LENGTH(data, at)
        at += 4 + length
        longest = max(longest, length)
    return longest
