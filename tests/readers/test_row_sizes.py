"""Sizes of rows against a slow count, for every type a format may use, sliced and not."""

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtool.errors import Refusal
from packtool.readers import columns
from packtool.readers.columns import record_lists
from packtool.readers.row_sizes import row_sizes

texts = st.text(max_size=5)
kinds = st.sampled_from(
    [
        (pa.string(), texts),
        (pa.large_string(), texts),
        (pa.string_view(), texts),
        (pa.binary(), st.binary(max_size=5)),
        (pa.dictionary(pa.int8(), pa.string()), texts),
        (pa.int32(), st.integers(0, 9)),
        (pa.bool_(), st.booleans()),
        (pa.list_(pa.int16()), st.lists(st.integers(0, 9), max_size=4)),
        (pa.large_list(pa.string()), st.lists(texts, max_size=4)),
        (pa.list_(pa.int64(), 2), st.lists(st.integers(0, 9), min_size=2, max_size=2)),
        (pa.list_(pa.list_(pa.int8())), st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=3)),
        (
            pa.list_(pa.struct([("role", pa.string()), ("weight", pa.float64())])),
            st.lists(st.fixed_dictionaries({"role": texts, "weight": st.just(0.5)}), max_size=3),
        ),
        (pa.map_(pa.string(), pa.int32()), st.lists(st.tuples(texts, st.integers(0, 9)), max_size=3)),
        (pa.timestamp("s"), st.just(datetime.datetime(2026, 1, 1))),
        (pa.null(), st.none()),
    ]
)


def counted(value: Any, kind: pa.DataType) -> int:
    """The size of a value, one by one."""
    if pa.types.is_dictionary(kind):
        return counted(value, kind.value_type)
    if pa.types.is_map(kind):
        return sum(counted(key, kind.key_type) + counted(item, kind.item_type) for key, item in value or ())
    if pa.types.is_struct(kind):
        return sum(counted((value or {}).get(kind.field(i).name), kind.field(i).type) for i in range(kind.num_fields))
    if pa.types.is_nested(kind):
        return sum(counted(element, kind.value_type) for element in value or ())
    if isinstance(value, str | bytes) or value is None:
        return len(value.encode() if isinstance(value, str) else value or b"")
    return (kind.bit_width + 7) // 8


@given(data=st.data())
def test_sizes_are_those_of_a_slow_count(data: st.DataObject) -> None:
    made, expected = [], None
    for kind, values in data.draw(st.lists(kinds, min_size=1, max_size=3)):
        rows = data.draw(st.lists(values, min_size=6, max_size=6))
        if kind in (pa.string(), pa.list_(pa.int16())):
            rows[3] = None
        made.append(pa.array(rows, kind))
        sizes = np.array([counted(row, kind) for row in rows])
        expected = sizes if expected is None else expected + sizes
    assert expected is not None
    start, stop = sorted(data.draw(st.tuples(st.integers(0, 6), st.integers(0, 6))))
    assert row_sizes(made, 6).tolist() == expected.tolist()
    sliced = [array.slice(start, stop - start) for array in made]
    assert row_sizes(sliced, stop - start).tolist() == expected[start:stop].tolist()


def test_rows_over_the_limit_are_refused_where_they_stand_and_the_others_are_not() -> None:
    lengths = [3, 30, 31, 0, 200, 30]
    batch = pa.RecordBatch.from_pydict(
        {"other": ["x" * 500] * 6, "text": ["y" * length for length in lengths], "n": pa.array(range(6), pa.int8())}
    )
    [records] = record_lists(batch, ["text", "n"], 31)
    for length, record in zip(lengths, records, strict=True):
        if length < 31:
            assert isinstance(record, dict)
            assert len(record["text"]) == length
        else:
            assert isinstance(record, Refusal)
            assert record.reason == "too_large"
            assert record.detail.startswith(f"{length + 1} bytes, over the limit of 31: text: yyyy")
            assert len(record.detail) < 120


@pytest.mark.parametrize(
    ("column", "start"),
    [
        (pa.array([[7, 8, 9] * 40], pa.list_(pa.int32())), "c: [7, 8, 9, 7"),
        (pa.array([[{"role": "user", "content": "x" * 400}]]), "c: [user, xxx"),
        (pa.array(["x" * 400], pa.dictionary(pa.int8(), pa.string())), "c: xxx"),
        (pa.array([b"\xff" * 400]), "c:"),
    ],
)
def test_a_large_row_is_quoted(column: pa.Array, start: str) -> None:
    [[record]] = record_lists(pa.record_batch([column], names=["c"]), None, 100)
    assert isinstance(record, Refusal)
    assert f"over the limit of 100: {start}" in record.detail
    assert len(record.detail) < 120


def test_lists_of_records_are_small_where_rows_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_BYTES", 8 << 10)
    lengths = [1 << 10] * 20 + [20 << 10] * 2 + [1] * 1000
    batch = pa.RecordBatch.from_pydict({"text": ["x" * length for length in lengths]})
    lists = list(record_lists(batch, None, 1 << 30))
    assert [len(record["text"]) for records in lists for record in records if isinstance(record, dict)] == lengths
    for records in lists:
        assert sum(len(record["text"]) for record in records[:-1] if isinstance(record, dict)) <= 8 << 10
