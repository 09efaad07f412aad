"""Arrow: files and streams, sliced and misaligned tables, digests of content alone."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtool.errors import BadData, Refusal
from packtool.readers import Unit, column_types, cut_units, head, limit_units, open_unit
from packtool.sources import Compression, Kind, Source

TABLE = pa.table(
    {
        "text": pa.array([f"text {number}" if number % 7 else None for number in range(1000)]),
        "ids": pa.array([list(range(number % 5)) for number in range(1000)], pa.list_(pa.int32())),
        "kind": pa.array([f"kind {number % 3}" for number in range(1000)]).dictionary_encode(),
    }
)
PLAIN = TABLE.drop_columns(["kind"])


def write(path: Path, table: pa.Table, form: str = "stream", rows: int = 100, **options: Any) -> Source:
    """A file of the form: its batches have as many rows as the table's own chunks and ``rows`` allow."""
    new = pa.ipc.new_stream if form == "stream" else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as file, new(file, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as out:
        out.write_table(table, max_chunksize=rows)
    return Source(name=path.name, path=path, kind=Kind.ARROW, compression=Compression.NONE)


def units_of(source: Source, unit_bytes: int = 1) -> list[Unit]:
    return list(cut_units(source, 0, unit_bytes=unit_bytes))


def rows_of(units: list[Unit], columns: list[str] | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for unit in units:
        for _, record in open_unit(unit, columns).records():
            assert isinstance(record, dict)
            found.append({k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in record.items()})
    return found


both = pytest.mark.parametrize("form", ["stream", "file"])
tables = pytest.mark.parametrize("table", [PLAIN, TABLE], ids=["plain", "dictionary"])


@both
@tables
@pytest.mark.parametrize("unit_bytes", [1, 3000, 1 << 30])
def test_units_are_whole_batches_that_give_every_row_once(
    tmp_path: Path, form: str, table: pa.Table, unit_bytes: int
) -> None:
    units = units_of(write(tmp_path / "a.arrow", table, form), unit_bytes)
    readers = [open_unit(unit) for unit in units]
    assert [reader.rows % 100 for reader in readers] == [0] * len(units)
    assert len(units) == {1: 10, 1 << 30: 1}.get(unit_bytes, len(units))
    assert rows_of(units) == table.to_pylist()
    for reader in readers:
        assert reader.columnar
        assert [row for row, _ in reader.records()] == list(range(reader.rows))


@given(data=st.data(), start=st.integers(0, 40), stop=st.integers(60, 100), form=st.sampled_from(["stream", "file"]))
def test_sliced_chunked_and_concatenated_tables_give_their_own_rows(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, start: int, stop: int, form: str
) -> None:
    cuts = data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=4))
    pieces = [TABLE.slice(start + 100 * number, cut) for number, cut in enumerate(cuts)]
    table = pa.concat_tables([*pieces, TABLE.slice(start, stop - start)])
    source = write(tmp_path_factory.getbasetemp() / "s.arrow", table, form, rows=data.draw(st.integers(1, 50)))
    assert rows_of(units_of(source)) == table.to_pylist()
    assert rows_of(units_of(source), ["ids"]) == table.select(["ids"]).to_pylist()


@tables
def test_a_digest_is_of_the_rows_and_not_of_how_they_were_written(tmp_path: Path, table: pa.Table) -> None:
    def digests(name: str, table: pa.Table, form: str = "stream", **options: Any) -> list[str]:
        return [open_unit(unit).digest for unit in units_of(write(tmp_path / name, table, form, **options))]

    plain = digests("a.arrow", table)
    assert len(set(plain)) == len(plain) == 10
    assert digests("b.arrow", table, "file") == plain
    assert digests("c.arrow", table, compression="zstd") == plain
    other = table.set_column(0, "text", pa.array([*table["text"].to_pylist()[:-1], "text X"]))
    assert digests("e.arrow", other)[:9] == plain[:9]
    assert digests("e.arrow", other)[9] != plain[9]
    assert digests("f.arrow", table.rename_columns(["body", *table.column_names[1:]])) != plain


@both
def test_a_limit_takes_the_first_rows(tmp_path: Path, form: str) -> None:
    source = write(tmp_path / "a.arrow", TABLE, form)
    units = list(limit_units(iter(units_of(source, 1 << 30)), 250))
    assert rows_of(units) == TABLE.to_pylist()[:250]
    [reader] = [open_unit(unit) for unit in units]
    assert (reader.rows, reader.count()) == (250, 250)
    [longer] = limit_units(iter(units_of(source, 1 << 30)), 251)
    assert open_unit(longer).digest != reader.digest
    other = write(tmp_path / "b.arrow", pa.concat_tables([TABLE.slice(0, 300), TABLE]), form)
    [same] = limit_units(iter(units_of(other, 1 << 30)), 250)
    assert open_unit(same).digest == reader.digest


@both
@tables
def test_units_travel_to_another_process(tmp_path: Path, form: str, table: pa.Table) -> None:
    for unit in units_of(write(tmp_path / "a.arrow", table, form)):
        assert open_unit(pickle.loads(pickle.dumps(unit))).digest == open_unit(unit).digest


@both
def test_types_of_columns_and_the_first_rows(tmp_path: Path, form: str) -> None:
    source = write(tmp_path / "a.arrow", TABLE, form)
    types = column_types(source)
    assert types == dict(zip(TABLE.schema.names, TABLE.schema.types, strict=True))
    assert [row for row, _ in head(source, 150)] == list(range(150))


@both
def test_a_table_without_rows_has_no_records(tmp_path: Path, form: str) -> None:
    source = write(tmp_path / "a.arrow", TABLE.slice(0, 0), form)
    assert rows_of(units_of(source)) == []
    assert [len(open_unit(unit).digest) for unit in units_of(source)] in ([], [64])


@both
def test_text_that_is_not_utf8_is_refused_at_its_row(tmp_path: Path, form: str) -> None:
    bad = pa.array([b"ok", b"\xff\xfe"]).view(pa.string())
    nested = pa.array([[{"content": "x", "role": "y"}], []])
    table = pa.table({"text": bad, "shared": bad.dictionary_encode(), "messages": nested})
    [unit] = units_of(write(tmp_path / "a.arrow", table, form))
    (_, first), (row, second) = open_unit(unit, ["text"]).records()
    assert first == {"text": "ok"}
    assert row == 1
    assert isinstance(second, Refusal)
    assert second.reason == "bad_utf8"


@both
def test_offsets_that_reach_outside_their_buffer_are_named_even_beside_bad_text(tmp_path: Path, form: str) -> None:
    bad = pa.array([b"\xff", b"b", b"c"]).view(pa.string())
    ids = pa.array([[1], [2], [3]], pa.list_(pa.int32()))
    wild = pa.ListArray.from_buffers(
        ids.type, 3, [None, pa.py_buffer(np.array([0, 10**6, 10**6, 3], np.int32))], children=[ids.values]
    )
    table = pa.table({"s": pa.StructArray.from_arrays([bad, wild], names=["text", "ids"])})
    [unit] = units_of(write(tmp_path / "a.arrow", table, form))
    with pytest.raises(BadData, match=r"a\.arrow: damaged Arrow file, record batch 0: "):
        list(open_unit(unit).records())


@both
@pytest.mark.parametrize("damage", ["empty", "text", "cut", "schema"])
def test_a_damaged_file_is_named(tmp_path: Path, form: str, damage: str) -> None:
    source = write(tmp_path / "a.arrow", PLAIN, form)
    data = source.path.read_bytes()
    source.path.write_bytes(
        {
            "empty": b"",
            "text": b'{"text": "not Arrow"}',
            "cut": data[: len(data) // 2],
            "schema": data[:8] + bytes(100) + data[108:-100] + bytes(100),
        }[damage]
    )
    with pytest.raises(BadData, match=r"a\.arrow: damaged Arrow file, "):
        rows_of(units_of(source))


def test_a_stream_without_its_end_or_with_more_behind_it_is_named(tmp_path: Path) -> None:
    source = write(tmp_path / "a.arrow", PLAIN)
    data = source.path.read_bytes()
    source.path.write_bytes(data[:-8])
    with pytest.raises(BadData, match=r"a\.arrow: .*10 record batches: the end of the stream is missing"):
        units_of(source)
    source.path.write_bytes(data + data)
    with pytest.raises(BadData, match=r"a\.arrow: .*10 record batches: more follows"):
        units_of(source)


@both
@pytest.mark.parametrize("change", ["shrinks", "vanishes"])
def test_a_file_that_changes_after_it_was_cut_is_named(tmp_path: Path, form: str, change: str) -> None:
    source = write(tmp_path / "a.arrow", TABLE, form)
    [unit] = units_of(source, 1 << 30)
    if change == "shrinks":
        write(source.path, TABLE.slice(0, 500), form)
    else:
        source.path.unlink()
    with pytest.raises(BadData, match=r"a\.arrow.*(changed|No such file)"):
        list(open_unit(unit).records())


@both
@given(places=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4))
def test_any_damage_ends_in_rows_or_in_an_error_that_names_the_file(
    tmp_path_factory: pytest.TempPathFactory, form: str, places: list[tuple[float, int]]
) -> None:
    source = write(tmp_path_factory.getbasetemp() / "f.arrow", TABLE.slice(0, 60), form, rows=20)
    data = bytearray(source.path.read_bytes())
    for place, byte in places:
        data[int(place * len(data))] = byte
    source.path.write_bytes(data)
    try:
        for unit in units_of(source):
            reader = open_unit(unit)
            assert len(reader.digest) == 64
            assert len(list(reader.records())) == reader.rows
        message = "f.arrow"
    except BadData as error:
        message = str(error)
    assert "f.arrow" in message
    assert message.isprintable()
