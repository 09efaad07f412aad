"""Columns of Arrow arrays become Python values, row by row. It changes and guesses no type."""

from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packtool.errors import Refusal
from packtool.readers.parsing import START_BYTES, quoted, too_large
from packtool.readers.row_sizes import row_sizes
from packtool.readers.units import Record

_ROWS = 1024
_BYTES = 8 << 20


def rows_at_once(rows: int, size: int) -> int:
    """How many rows to convert in one step, if ``rows`` take ``size`` bytes: about 8 MiB, at most 1,024."""
    return max(1, min(_ROWS, _BYTES * rows // max(size, 1)))


def record_lists(
    batch: pa.RecordBatch, columns: Collection[str] | None, max_record_bytes: int
) -> Iterator[list[Record | Refusal]]:
    """What ``batch_records`` makes of each row, in lists of about 8 MiB of rows, at least one of them.

    A row whose columns asked for have more than ``max_record_bytes`` (see ``row_sizes``) is a Refusal ``too_large``.
    """
    used = [index for index, name in enumerate(batch.schema.names) if columns is None or name in columns]
    sizes = row_sizes([batch.column(index) for index in used], batch.num_rows)
    large = sizes > max_record_bytes
    parts = (np.cumsum(sizes) - sizes) // _BYTES
    cuts = [*np.flatnonzero(np.diff(parts, prepend=-1)).tolist(), batch.num_rows]
    for first, stop in pairwise(cuts):
        piece = batch.slice(first, stop - first)
        if not large[first:stop].any():
            yield list(batch_records(piece, columns))
            continue
        sound = iter(list(batch_records(piece.take(pa.array(np.flatnonzero(~large[first:stop]))), columns)))
        yield [
            too_large(int(sizes[row]), max_record_bytes, _start(batch, used, row)) if large[row] else next(sound)
            for row in range(first, stop)
        ]


def _start(batch: pa.RecordBatch, used: list[int], row: int) -> bytes:
    """About how a row begins, to be quoted."""
    index = next(index for index in used if batch.column(index)[row].is_valid)
    return f"{batch.schema.names[index]}: ".encode()[:START_BYTES] + _glimpse(batch.column(index)[row])


def _glimpse(scalar: pa.Scalar) -> bytes:
    if isinstance(scalar, pa.DictionaryScalar):
        scalar = scalar.value
    if isinstance(scalar, pa.StructScalar):
        return b", ".join(_glimpse(part) for part in scalar.values() if part.is_valid)[:START_BYTES]
    if isinstance(scalar, pa.ListScalar):
        return b"[" + b", ".join(_glimpse(part) for part in scalar.values.slice(0, 16))[:START_BYTES]
    if isinstance(scalar, (pa.StringScalar, pa.BinaryScalar)):
        return bytes(scalar.as_buffer()[:START_BYTES])
    return str(scalar)[:START_BYTES].encode("utf-8", "backslashreplace")


def batch_records(batch: pa.RecordBatch, columns: Collection[str] | None) -> Iterator[Record | Refusal]:
    """Each row of a batch, with the columns asked for that it has (None: all).

    Text is ``str``, and a row with text that is not UTF-8 a Refusal ``bad_utf8``. A list of integers is an
    int64 array [n], a list of booleans a bool array [n]; where one holds a null, or a number beyond int64, it
    is a Python list. Everything else is what pyarrow makes of it (null None, a timestamp a ``datetime``), or
    the pyarrow scalar where Python has no such value.
    """
    wanted = [i for i, name in enumerate(batch.schema.names) if columns is None or name in columns]
    names = [batch.schema.names[i] for i in wanted]
    if not names:
        yield from ({} for _ in range(batch.num_rows))
    for row in zip(*(_values(batch.column(i)) for i in wanted), strict=True):
        if any(value is _BAD_TEXT for value in row):
            bad = next(name for name, value in zip(names, row, strict=True) if value is _BAD_TEXT)
            yield Refusal("bad_utf8", f"column {quoted(bad)} holds text that is not UTF-8")
        else:
            yield dict(zip(names, row, strict=True))


_BAD_TEXT = object()


def _values(array: pa.Array) -> list[Any]:
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _dictionary_values(array)
    if _is_list(kind) and (pa.types.is_integer(kind.value_type) or pa.types.is_boolean(kind.value_type)):
        return _numbers(array)
    try:
        if (plain := _plain(kind)) != kind:
            # taken, not sliced: a cast is of all values that the array shares with others
            array = array.take(_counting(len(array))).cast(plain)
        values: list[Any] = array.to_pylist()
    except (ValueError, OverflowError, pa.ArrowException):
        return [_value(scalar) for scalar in array]
    return values


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type without dictionaries, which are slow to look up one by one, inside lists and structs."""
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if pa.types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        return pa.struct([field.with_type(_plain(field.type)) for field in fields])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        make = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return make(kind.value_field.with_type(_plain(kind.value_type)))
    return kind


def _counting(count: int) -> pa.Array:
    # pa.array would import pandas, where it is installed, to ask whether this is a column of it
    return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(np.arange(count))])


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return _BAD_TEXT
    except (ValueError, OverflowError, pa.ArrowException):
        return scalar  # a time with nanoseconds, a date after 9999: of no type that a field may have


def _dictionary_values(array: pa.DictionaryArray) -> list[Any]:
    # only what is used: all batches of a file share the dictionary, which may be much larger than this one
    indices = array.indices
    used = indices.drop_null().unique()
    pool = dict(zip(used.to_pylist(), _values(array.dictionary.take(used)), strict=True))
    return [None if index is None else pool[index] for index in indices.to_pylist()]


def _numbers(array: pa.Array) -> list[Any]:
    """Lists of integers or booleans as slices of one numpy array; what does not fit as Python lists."""
    if len(array) == 0:
        return []
    starts, ends = _bounds(array)
    values = array.values.slice(int(starts[0]), int(ends[-1] - starts[0]))
    starts, ends = starts - starts[0], ends - starts[0]
    boolean = pa.types.is_boolean(values.type)
    unfit = values.is_null().to_numpy(zero_copy_only=False)
    flat = values.fill_null(False if boolean else 0).to_numpy(zero_copy_only=False)
    if flat.dtype == np.uint64:
        unfit = unfit | (flat > np.uint64(np.iinfo(np.int64).max))
    flat = flat.astype(np.bool_ if boolean else np.int64, copy=False)
    lists: list[Any] = [flat[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
    before = np.concatenate(([0], np.cumsum(unfit)))
    odd = array.is_null().to_numpy(zero_copy_only=False) | (before[ends] > before[starts])
    for row in np.flatnonzero(odd).tolist():
        lists[row] = array[row].as_py()
    return lists


def _bounds(array: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where in ``array.values`` each list starts and ends."""
    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        starts = (np.arange(len(array), dtype=np.int64) + array.offset) * size
        return starts, starts + size
    offsets = array.offsets.to_numpy().astype(np.int64)
    return offsets[:-1], offsets[1:]
