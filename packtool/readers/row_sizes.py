"""Columns of Arrow arrays become the bytes of each of their rows, from offsets alone: nothing is looked at one by one.

A text counts its bytes, a number the bytes its column has for one; lists and structs count what is in them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Int64s = NDArray[np.int64]


def row_sizes(columns: Sequence[pa.Array], rows: int) -> Int64s:
    """int64 [rows], the bytes of each row in all ``columns`` together."""
    sizes = np.zeros(rows, np.int64)
    for column in columns:
        sizes += _sizes(column)
    return sizes


def _sizes(array: pa.Array) -> Int64s:
    kind = array.type
    if len(array) == 0 or pa.types.is_null(kind):
        return np.zeros(len(array), np.int64)
    if isinstance(array, pa.ExtensionArray):
        return _sizes(array.storage)
    if pa.types.is_dictionary(kind):
        entries = np.append(_sizes(array.dictionary), 0)  # the last one stands for null
        of_rows: Int64s = entries[array.indices.cast(pa.int64()).fill_null(len(entries) - 1).to_numpy()]
        return of_rows
    if pa.types.is_struct(kind):
        return row_sizes([array.field(index) for index in range(kind.num_fields)], len(array))
    if kind in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary()):
        dtype = np.dtype(np.int64 if kind in (pa.large_string(), pa.large_binary()) else np.int32)
        return np.diff(_buffer(array, dtype, len(array) + 1)).astype(np.int64)
    if kind in (pa.string_view(), pa.binary_view()):
        return _buffer(array, np.dtype((np.int32, 4)), len(array))[:, 0].astype(np.int64)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        offsets = array.offsets.to_numpy().astype(np.int64)
        return _of_lists(array.values, offsets[:-1], offsets[1:])
    if pa.types.is_fixed_size_list(kind):
        starts = (np.arange(len(array), dtype=np.int64) + array.offset) * kind.list_size
        return _of_lists(array.values, starts, starts + kind.list_size)
    return np.full(len(array), _width(kind), np.int64)


def _of_lists(values: pa.Array, starts: Int64s, ends: Int64s) -> Int64s:
    if width := _width(values.type):
        return (ends - starts) * width
    first = int(starts[0])
    before = np.concatenate(([0], np.cumsum(_sizes(values.slice(first, int(ends[-1]) - first)))))
    return before[ends - first] - before[starts - first]


def _width(kind: pa.DataType) -> int:
    """The bytes of each value; 0 where they differ, or nobody has use for them."""
    nested = isinstance(kind, pa.BaseExtensionType) or pa.types.is_dictionary(kind) or kind.num_fields > 0
    try:
        return 0 if nested else (int(kind.bit_width) + 7) // 8
    except ValueError:
        return 0


def _buffer(array: pa.Array, dtype: "np.dtype[Any]", count: int) -> NDArray[Any]:
    return np.frombuffer(array.buffers()[1], dtype, count, array.offset * dtype.itemsize)
