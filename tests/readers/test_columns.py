"""Columns: Python values of every type that a dataset may hold, none of them guessed or changed."""

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtool.errors import Refusal
from packtool.readers.columns import batch_records, rows_at_once


def values(array: pa.Array) -> list[Any]:
    """What a column of one batch becomes; a refused row is its reason."""
    batch = pa.record_batch([array], names=["c"])
    return [record.reason if isinstance(record, Refusal) else record["c"] for record in batch_records(batch, None)]


def same(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray):
        return isinstance(right, list) and left.tolist() == right and left.dtype in (np.int64, np.bool_)
    return type(left) is type(right) and left == right


TEXTS = ["", "a", None, "é😀", "x" * 100, "\x00", "a"]


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())],
    ids=str,
)
def test_text_of_every_kind_is_str(kind: pa.DataType) -> None:
    array = pa.array(TEXTS, pa.string()).cast(kind)
    assert values(array) == TEXTS
    assert values(array.slice(2, 3)) == TEXTS[2:5]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
def test_text_that_is_not_utf8_is_a_refusal_of_its_row_alone(kind: pa.DataType) -> None:
    binary = pa.array(
        [b"ok", b"\xff", None, b"\xed\xa0\x80"], pa.binary() if kind == pa.string() else pa.large_binary()
    )
    assert values(binary.view(kind)) == ["ok", "bad_utf8", None, "bad_utf8"]
    nested = pa.StructArray.from_arrays([binary.view(kind)], names=["content"])
    assert values(nested) == [{"content": "ok"}, "bad_utf8", {"content": None}, "bad_utf8"]
    shared = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), binary.view(kind))
    assert values(shared) == ["ok", "bad_utf8", "ok"]
    [first, second, *_] = batch_records(pa.record_batch([binary.view(kind)], names=["te\x1bxt"]), None)
    assert first == {"te\x1bxt": "ok"}
    assert isinstance(second, Refusal)
    assert "te\\x1bxt" in second.detail


integer_types = st.sampled_from(
    [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()]
)


@given(data=st.data(), kind=integer_types, wrap=st.sampled_from([pa.list_, pa.large_list]))
def test_lists_of_integers_are_slices_that_equal_the_lists(data: st.DataObject, kind: pa.DataType, wrap: Any) -> None:
    low, high = (np.iinfo(kind.to_pandas_dtype()).min, np.iinfo(kind.to_pandas_dtype()).max)
    number = st.integers(int(low), int(high)) | st.sampled_from([int(low), int(high)])
    rows = data.draw(st.lists(st.none() | st.lists(st.none() | number, max_size=4), max_size=8))
    array = pa.array(rows, wrap(kind))
    start = data.draw(st.integers(0, len(rows)))
    for piece, expected in ((array, rows), (array.slice(start), rows[start:])):
        found = values(piece)
        assert len(found) == len(expected)
        for got, want in zip(found, expected, strict=True):
            fits = want is not None and all(n is not None and n < 2**63 for n in want)
            assert isinstance(got, np.ndarray) == fits
            assert (got.tolist() if fits else got) == want
            assert not fits or got.dtype == np.int64


@given(rows=st.lists(st.none() | st.lists(st.none() | st.booleans(), max_size=4), max_size=8))
def test_lists_of_booleans_are_bool_arrays(rows: list[Any]) -> None:
    for got, want in zip(values(pa.array(rows, pa.list_(pa.bool_()))), rows, strict=True):
        fits = want is not None and None not in want
        assert isinstance(got, np.ndarray) == fits
        assert (got.tolist() if fits else got) == want


def test_lists_of_fixed_size_and_null_lists_that_hide_values() -> None:
    fixed = pa.array([[1, 2], None, [3, 4], [5, None]], pa.list_(pa.int32(), 2))
    got = values(fixed)
    assert [got[0].tolist(), got[1], got[2].tolist(), got[3]] == [[1, 2], None, [3, 4], [5, None]]
    assert [got.tolist() if isinstance(got, np.ndarray) else got for got in values(fixed.slice(2, 2))] == [
        [3, 4],
        [5, None],
    ]
    hidden = pa.ListArray.from_arrays(pa.array([0, 2, 4]), pa.array([1, 2, 3, 4]), mask=pa.array([True, False]))
    assert [None if got is None else got.tolist() for got in values(hidden)] == [None, [3, 4]]


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([1, None], pa.uint64()), [1, None]),
        (pa.array([2**64 - 1], pa.uint64()), [2**64 - 1]),
        (pa.array([1.0, None]), [1.0, None]),
        (pa.array([True, None]), [True, None]),
        (pa.array([None, None]), [None, None]),
        (pa.array([b"raw"]), [b"raw"]),
        (pa.array([[1.0], None]), [[1.0], None]),
        (pa.array([datetime.datetime(2024, 1, 1)]), [datetime.datetime(2024, 1, 1)]),
        (pa.array([[{"role": "user", "content": None}], None]), [[{"role": "user", "content": None}], None]),
        (pa.array([["a", None]]).cast(pa.list_(pa.dictionary(pa.int8(), pa.string()))), [["a", None]]),
        (pa.array([None, 0, 1], pa.int8()).dictionary_encode(), [None, 0, 1]),
        (pa.DictionaryArray.from_arrays(pa.array([1, 0, None]), pa.array([None, "b"])), ["b", None, None]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_everything_else_is_what_pyarrow_makes_of_it(array: pa.Array, expected: list[Any]) -> None:
    assert all(same(got, want) for got, want in zip(values(array), expected, strict=True))


def test_what_python_cannot_hold_stays_a_scalar_and_spoils_no_other_row() -> None:
    far = pa.array([0, 2**62], pa.int64()).cast(pa.timestamp("s"), safe=False)
    first, second = values(far)
    assert first == datetime.datetime(1970, 1, 1)
    assert isinstance(second, pa.Scalar)


def test_only_the_columns_asked_for_are_given() -> None:
    batch = pa.record_batch({"a": [1, 2], "b": ["x", "y"]})
    assert list(batch_records(batch, {"b", "z"})) == [{"b": "x"}, {"b": "y"}]
    assert list(batch_records(batch, ())) == [{}, {}]
    assert list(batch_records(batch, None)) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]


def test_a_step_is_about_8_mib_but_at_least_a_row() -> None:
    assert rows_at_once(10**6, 10**6) == 1024
    assert rows_at_once(1000, 1000 << 20) == 8
    assert rows_at_once(1, 1 << 40) == 1
    assert rows_at_once(0, 0) == 1
