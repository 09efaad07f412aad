"""Parquet: whole row groups, exact digests, and damage that names file and row group."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtool.errors import BadData, Refusal
from packtool.readers import Unit, column_types, columns, cut_units, head, limit_units, open_unit, parquet
from packtool.readers.columns import record_lists
from packtool.sources import Compression, Kind, Source

TABLE = pa.table(
    {
        "text": [f"text {number}" if number % 7 else None for number in range(1000)],
        "input_ids": pa.array([list(range(number % 5)) for number in range(1000)], pa.list_(pa.int32())),
        "messages": [[{"role": "user", "content": str(number)}] for number in range(1000)],
    }
)


def write(path: Path, table: pa.Table = TABLE, **options: Any) -> Source:
    pq.write_table(table, path, **({"row_group_size": 100} | options))
    return Source(name=path.name, path=path, kind=Kind.PARQUET, compression=Compression.NONE)


def units_of(source: Source, unit_bytes: int = 1, **options: Any) -> list[Unit]:
    return list(cut_units(source, 0, unit_bytes=unit_bytes, **options))


def texts(units: list[Unit]) -> list[Any]:
    return [
        record["text"]
        for unit in units
        for _, record in open_unit(unit, ["text"]).records()
        if isinstance(record, dict)
    ]


@pytest.mark.parametrize("unit_bytes", [1, 3000, 1 << 30])
def test_units_are_whole_row_groups_that_give_every_row_once(tmp_path: Path, unit_bytes: int) -> None:
    source = write(tmp_path / "a.parquet")
    units = units_of(source, unit_bytes)
    readers = [open_unit(unit, ["text"]) for unit in units]
    assert [reader.rows % 100 for reader in readers] == [0] * len(units)
    assert sum(reader.rows for reader in readers) == 1000
    assert len(units) == {1: 10, 1 << 30: 1}.get(unit_bytes, len(units))
    assert texts(units) == TABLE["text"].to_pylist()
    for reader in readers:
        assert reader.columnar
        assert [row for row, _ in reader.records()] == list(range(reader.rows))


def test_records_have_the_columns_asked_for(tmp_path: Path) -> None:
    [unit] = units_of(write(tmp_path / "a.parquet"), 1 << 30)
    assert next(open_unit(unit, {"text", "absent"}).records()) == (0, {"text": None})
    assert next(open_unit(unit, ()).records()) == (0, {})
    _, record = list(open_unit(unit).records())[3]
    assert isinstance(record, dict)
    assert (record["text"], record["input_ids"].tolist()) == ("text 3", [0, 1, 2])
    assert record["messages"] == [{"role": "user", "content": "3"}]


def test_a_dot_in_a_column_name_is_no_path(tmp_path: Path) -> None:
    table = pa.table({"a.b": ["dot"], "a": [{"b": "nested"}]})
    [unit] = units_of(write(tmp_path / "a.parquet", table))
    assert [record for _, record in open_unit(unit, ["a.b"]).records()] == [{"a.b": "dot"}]
    assert [record for _, record in open_unit(unit, ["a"]).records()] == [{"a": {"b": "nested"}}]


def test_a_digest_covers_every_byte_of_its_row_groups_and_no_other(tmp_path: Path) -> None:
    source = write(tmp_path / "a.parquet", compression="none", use_dictionary=False)
    before = [open_unit(unit).digest for unit in units_of(source)]
    assert len(set(before)) == 10
    data = source.path.read_bytes()
    at = data.index(b"text 555")
    source.path.write_bytes(data[:at] + b"TEXT 555" + data[at + 8 :])
    after = [open_unit(unit).digest for unit in units_of(source)]
    assert [index for index in range(10) if before[index] != after[index]] == [5]
    renamed = TABLE.rename_columns(["body", "input_ids", "messages"])
    write(tmp_path / "a.parquet", renamed, compression="none", use_dictionary=False)
    assert not set(before) & {open_unit(unit).digest for unit in units_of(source)}


def test_a_limit_reads_no_more_row_groups_than_it_needs(tmp_path: Path) -> None:
    source = write(tmp_path / "a.parquet")
    units = list(limit_units(iter(units_of(source, 1 << 30)), 250))
    assert texts(units) == TABLE["text"].to_pylist()[:250]
    [reader] = [open_unit(unit) for unit in units]
    assert (reader.rows, reader.count()) == (250, 250)
    [longer] = limit_units(iter(units_of(source, 1 << 30)), 251)
    assert reader.digest != open_unit(longer).digest
    assert len(list(limit_units(iter(units_of(source)), 250))) == 3
    # what lies behind them in the same unit is not looked at
    start = pq.read_metadata(source.path).row_group(5).column(0).data_page_offset
    data = bytearray(source.path.read_bytes())
    data[start : start + 60] = bytes(60)
    source.path.write_bytes(data)
    assert open_unit(units[0]).digest == reader.digest
    assert texts(units) == TABLE["text"].to_pylist()[:250]


def test_units_travel_to_another_process(tmp_path: Path) -> None:
    for unit in units_of(write(tmp_path / "a.parquet")):
        assert open_unit(pickle.loads(pickle.dumps(unit))).digest == open_unit(unit).digest


def test_types_of_columns_and_the_first_rows(tmp_path: Path) -> None:
    source = write(tmp_path / "a.parquet")
    types = column_types(source)
    assert types is not None
    assert list(types) == ["text", "input_ids", "messages"]
    assert types["text"] == pa.string()
    assert pa.types.is_nested(types["messages"])
    assert [row for row, _ in head(source, 150)] == list(range(150))


def test_a_table_without_rows_has_no_records(tmp_path: Path) -> None:
    source = write(tmp_path / "a.parquet", TABLE.slice(0, 0))
    assert texts(units_of(source)) == []
    assert head(source) == []


def test_text_that_is_not_utf8_is_refused_at_its_row(tmp_path: Path) -> None:
    text = pa.array([b"ok", b"\xff\xfe"]).view(pa.string())
    [unit] = units_of(write(tmp_path / "a.parquet", pa.table({"text": text})))
    (_, first), (row, second) = open_unit(unit, ["text"]).records()
    assert first == {"text": "ok"}
    assert row == 1
    assert isinstance(second, Refusal)
    assert second.reason == "bad_utf8"


@pytest.mark.parametrize("damage", ["empty", "footer", "cut", "text"])
def test_a_damaged_footer_is_named(tmp_path: Path, damage: str) -> None:
    source = write(tmp_path / "a.parquet")
    data = source.path.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    source.path.write_bytes(
        {
            "empty": b"",
            "footer": data[: -8 - length] + bytes(length) + data[-8:],
            "cut": data[: len(data) // 2],
            "text": b'{"text": "not Parquet"}',
        }[damage]
    )
    for use in (units_of, head, column_types):
        with pytest.raises(BadData, match=r"a\.parquet: damaged Parquet, footer: "):
            use(source)


def test_a_damaged_page_is_named_with_its_row_group_after_the_units_before_it(tmp_path: Path) -> None:
    source = write(tmp_path / "a.parquet", compression="zstd")
    metadata = pq.read_metadata(source.path)
    start = metadata.row_group(4).column(0).data_page_offset
    data = bytearray(source.path.read_bytes())
    data[start : start + 60] = bytes(60)
    source.path.write_bytes(data)
    units = units_of(source)
    assert len(texts(units[:4])) == 400
    with pytest.raises(BadData, match=r"a\.parquet: damaged Parquet, row group 4: "):
        texts([units[4]])


@pytest.mark.parametrize("columns", [(), ("text",), None])
def test_rows_that_only_the_footer_knows_of_are_damage(tmp_path: Path, columns: tuple[str, ...] | None) -> None:
    source = write(tmp_path / "a.parquet", TABLE.slice(0, 100))
    data = source.path.read_bytes()
    rows, more = b"\x16\xc8\x01", b"\x16\x80\x7d"  # Thrift's 100 and 8,000
    assert rows in data
    source.path.write_bytes(data.replace(rows, more))
    [unit] = units_of(source)
    assert open_unit(unit).rows == 8000
    with pytest.raises(BadData, match=r"a\.parquet: damaged Parquet, row group 0: "):
        list(open_unit(unit, columns).records())


@pytest.mark.parametrize("change", ["shrinks", "vanishes"])
def test_a_file_that_changes_after_it_was_cut_is_named(tmp_path: Path, change: str) -> None:
    source = write(tmp_path / "a.parquet")
    [unit] = units_of(source, 1 << 30)
    if change == "shrinks":
        write(tmp_path / "a.parquet", TABLE.slice(0, 500))
    else:
        source.path.unlink()
    reader = open_unit(unit)
    with pytest.raises(BadData, match=r"a\.parquet.*(changed|No such file)"):
        _ = reader.digest
    with pytest.raises(BadData, match=r"a\.parquet.*(changed|No such file)"):
        list(reader.records())


@given(places=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4))
def test_any_damage_ends_in_rows_or_in_an_error_that_names_the_file(
    tmp_path_factory: pytest.TempPathFactory, places: list[tuple[float, int]]
) -> None:
    source = write(tmp_path_factory.getbasetemp() / "f.parquet", TABLE.slice(0, 60), row_group_size=20)
    data = bytearray(source.path.read_bytes())
    for place, byte in places:
        data[int(place * len(data))] = byte
    source.path.write_bytes(data)
    try:
        for unit in units_of(source):
            reader = open_unit(unit)
            assert len(reader.digest) == 64
            assert len(list(reader.records())) == reader.rows
        message = "f.parquet"
    except BadData as error:
        message = str(error)
    assert "f.parquet" in message
    assert message.isprintable()


def test_a_footer_and_pages_that_disagree_are_damage(tmp_path: Path) -> None:
    # One count fewer, wherever it stands, would leave rows or tokens out without a word.
    table = pa.table(
        {
            "number": pa.array(range(777), pa.int32()),
            "ids": pa.array([[row, 1, 2, 3] for row in range(777)], pa.list_(pa.int32())),
        }
    )
    ids: list[list[int]] = []
    for version in ("1.0", "2.0"):
        source = write(
            tmp_path / f"{version}.parquet",
            table,
            row_group_size=1000,
            data_page_version=version,
            compression="none",
            store_schema=False,
        )
        data = source.path.read_bytes()
        refused = {b"\x92\x0c": 0, b"\xc8\x30": 0}  # Thrift's 777 and 3,108
        for count, fewer in ((b"\x92\x0c", b"\x88\x06"), (b"\x92\x0c", b"\x90\x0c"), (b"\xc8\x30", b"\xc6\x30")):
            for place in range(len(data)):
                if not data.startswith((b"\x15" + count, b"\x16" + count), place):
                    continue
                source.path.write_bytes(data[: place + 1] + fewer + data[place + 3 :])
                message = ""
                try:
                    records = [record for unit in units_of(source) for _, record in open_unit(unit).records()]
                    ids = [list(record["ids"]) for record in records if isinstance(record, dict)]
                except BadData as error:
                    message = str(error)
                    refused[count] += 1
                assert ids == table["ids"].to_pylist() or "parquet: damaged Parquet, " in message
                ids = []
        assert refused[b"\x92\x0c"] >= 6  # of the file, its row group, the chunk and the page, twice
        assert refused[b"\xc8\x30"] >= 2


@pytest.mark.parametrize("rows", [1, 40])
def test_few_rows_are_decoded_at_once_where_a_few_bytes_stand_for_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(parquet, "_HELD", 1_000_000)
    monkeypatch.setattr(columns, "_BYTES", 1_000_000)
    text, word = "x" * 300_000, pa.dictionary(pa.int32(), pa.string())
    table = pa.table(
        {
            "text": pa.array([text] * rows, word),
            "input_ids": pa.array([np.full(110_000, 7, np.int32)] * rows, pa.list_(pa.int32())),
        }
    )
    source = write(tmp_path / "a.parquet", table, compression="zstd")
    assert source.path.stat().st_size < 20_000
    held: list[int] = []

    def counted(batch: pa.RecordBatch, columns: Any, limit: int) -> Any:
        held.append(batch.num_rows)
        return record_lists(batch, columns, limit)

    monkeypatch.setattr(parquet, "record_lists", counted)
    for column, most in (("text", 3), ("input_ids", 1)):
        held.clear()
        [unit] = units_of(source, max_record_bytes=400_000)
        records = [record for _, record in open_unit(unit, [column]).records()]
        assert len(records) == rows
        assert {isinstance(record, Refusal) for record in records} == {column == "input_ids"}
        assert max(held, default=1) <= most


@pytest.mark.parametrize("held", [1 << 28, 1500])
def test_texts_in_lists_that_share_few_entries_are_read_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    monkeypatch.setattr(parquet, "_HELD", held)
    monkeypatch.setattr(parquet, "_check", lambda *_: None)
    rows = [
        [{"role": "user", "content": f"text {row % 7}"}, None] * (row % 3) + [{"role": None, "content": "é" * row}]
        for row in range(200)
    ]
    rows[4] = []
    table = pa.table({"messages": rows, "plain": range(200)})
    source = write(tmp_path / "a.parquet", table, row_group_size=200)
    [unit] = units_of(source, max_record_bytes=300)
    records = [record for _, record in open_unit(unit).records()]
    for row, record in enumerate(records):
        size = 8 + sum(len(f"{m['role'] or ''}{m['content']}".encode()) for m in rows[row] if m)
        assert isinstance(record, Refusal) == (size > 300)
        assert isinstance(record, Refusal) or record == {"messages": rows[row], "plain": row}


def test_a_conversation_of_one_long_text_many_times_is_refused_without_making_it(tmp_path: Path) -> None:
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 3000, pa.int32()), pa.array(["x" * 1_000_000]))
    messages = pa.ListArray.from_arrays(
        pa.array([0, 2, 3000], pa.int32()), pa.StructArray.from_arrays([text], ["content"])
    )
    source = write(tmp_path / "a.parquet", pa.table({"messages": messages}))
    before = pa.default_memory_pool().max_memory()
    [unit] = units_of(source)
    (_, first), (_, second) = open_unit(unit).records()
    assert first == {"messages": [{"content": "x" * 1_000_000}] * 2}
    assert isinstance(second, Refusal)
    assert second.detail.startswith("2,998,000,000 bytes, over the limit of 67,108,864: messages: [xxx")
    assert pa.default_memory_pool().max_memory() <= max(before, 100_000_000)


def test_a_page_that_no_reader_should_hold_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "a.parquet", pa.table({"text": ["x" * 3000]}), compression="zstd")
    monkeypatch.setattr(parquet, "_HELD", 2999)
    [unit] = units_of(source, max_record_bytes=1000)
    with pytest.raises(
        BadData, match=r"a\.parquet: damaged Parquet, row group 0: column text: a page of 3,0\d\d bytes"
    ):
        list(open_unit(unit).records())


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_one_long_row_among_short_ones_is_read_by_itself_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(parquet, "_HELD", 1_000_000)
    lists = [[1, 2, 3]] * 500 + [[4] * 100_000] + [[5, 6]] * 499
    table = pa.table({"ids": pa.array(lists, pa.list_(pa.int32()))})
    source = write(tmp_path / "a.parquet", table, row_group_size=1000, data_page_version=version)
    held: list[int] = []

    def counted(batch: pa.RecordBatch, columns: Any, limit: int) -> Any:
        held.append(batch.num_rows)
        return record_lists(batch, columns, limit)

    monkeypatch.setattr(parquet, "record_lists", counted)
    [unit] = units_of(source, max_record_bytes=1000)
    records = [record for _, record in open_unit(unit).records()]
    assert [isinstance(record, Refusal) for record in records] == [len(ids) > 250 for ids in lists]
    assert max(held) == 1000  # 800 kB in all
    monkeypatch.setattr(parquet, "_HELD", 810_000)
    held.clear()
    assert len(list(open_unit(unit).records())) == 1000
    assert max(held) == 1
    monkeypatch.setattr(parquet, "_HELD", 790_000)
    with pytest.raises(BadData, match=r"damaged Parquet, row group 0: one of its rows may take 800,000 bytes to read"):
        list(open_unit(unit).records())
