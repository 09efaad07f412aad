"""Lines: the same records, rows and bytes wherever the file is cut and whatever wraps it."""

import gzip
import hashlib
import pickle
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from packtool.errors import BadData, Refusal
from packtool.readers import Unit, cut_units, decompress, head, limit_units, lines, open_unit
from packtool.sources import Compression, Kind, Source

BOM = b"\xef\xbb\xbf"

line = st.sampled_from(
    [
        b'{"text": "a"}',
        b'{"text": "\xe2\x80\xa8 inside"}',  # U+2028
        b'{"text": "\xc2\x85 \\n inside"}',  # NEL, and an escaped newline
        b'{"text": "caf\xc3\xa9"}\r',
        b"",
        b" \t",
        b"\r",
        b"\x0c",  # a form feed is not blank
        BOM + b'{"text": "a mark in the middle"}',
        b"[1]",
        b"nonsense",
        b"\xff",
        b'{"text": "' + b"x" * 100 + b'"}',
    ]
)
content = st.builds(
    lambda mark, lines, end: mark + b"\n".join(lines) + end,
    st.sampled_from([b"", BOM]),
    st.lists(line, max_size=12),
    st.sampled_from([b"", b"\n"]),
)


def write(path: Path, data: bytes) -> Source:
    """A file as its name says, and the source that it is."""
    compression = {".gz": Compression.GZIP, ".zst": Compression.ZSTD}.get(path.suffix, Compression.NONE)
    if compression is Compression.GZIP:
        data = gzip.compress(data, mtime=0)
    elif compression is Compression.ZSTD:
        data = zstandard.compress(data)
    path.write_bytes(data)
    return Source(name=path.name, path=path, kind=Kind.LINES, compression=compression)


def small_blocks(size: int) -> pytest.MonkeyPatch:
    """Read files in blocks so small that lines fall across them; to be undone."""
    patch = pytest.MonkeyPatch()
    patch.setattr(decompress, "_READ", size)
    patch.setattr(lines, "_BLOCK", size)
    return patch


def units_of(source: Source, unit_bytes: int, max_record_bytes: int = 80) -> list[Unit]:
    return list(cut_units(source, 0, unit_bytes=unit_bytes, max_record_bytes=max_record_bytes))


def read(units: list[Unit]) -> list[tuple[int, Any]]:
    """Row in the source and record, as a run would number them."""
    found: list[tuple[int, Any]] = []
    first = 0
    for unit in units:
        reader = open_unit(unit)
        found += [(first + row, record) for row, record in reader.records()]
        first += reader.rows
    return found


def read_in_blocks(units: list[Unit]) -> list[tuple[int, Any]]:
    """The same as ``read``."""
    found: list[tuple[int, Any]] = []
    first = 0
    for unit in units:
        reader = open_unit(unit)
        for block in reader.blocks():
            found += zip((first + block.rows).tolist(), block.records, strict=True)
        first += reader.rows
    return found


def by_hand(data: bytes, limit: int = 80) -> list[tuple[int, str]]:
    """Row, and what kind of thing is there, of each line that is not blank."""
    rows: list[tuple[int, str]] = []
    for row, raw in enumerate(data.removeprefix(BOM).split(b"\n")):
        if len(raw) > limit:
            rows.append((row, "too_large"))
        elif raw.strip(b" \t\r"):
            kinds = {b"[1]": "not_object", b"nonsense": "bad_json", b"\x0c": "bad_json", b"\xff": "bad_utf8"}
            mark = "bad_json" if raw.startswith(BOM) else "record"
            rows.append((row, kinds.get(raw, mark)))
    return rows


@given(data=content, unit_bytes=st.integers(1, 200))
def test_records_and_rows_do_not_depend_on_where_a_file_is_cut(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, unit_bytes: int
) -> None:
    source = write(tmp_path_factory.getbasetemp() / "a.jsonl", data)
    units = units_of(source, unit_bytes)
    assert read(units) == read(units_of(source, 1 << 20))
    assert [(row, record.reason if isinstance(record, Refusal) else "record") for row, record in read(units)] == (
        by_hand(data)
    )
    assert len(units) == -(-len(data) // unit_bytes)
    assert [unit.index for unit in units] == list(range(len(units)))


odd_line = st.sampled_from(
    [
        b"1",
        b"null",
        b'"a"',
        b'{"text": NaN}',
        b'{"text": "\\ud800"}',
        b'{"a": 1, "a": 2}',
        b"{" * 600,
        b'{"a": 1}  ',
        b"\x0b",
    ]
)


@given(
    data=st.builds(
        lambda lines, end: b"\n".join(lines) + end, st.lists(line | odd_line), st.sampled_from([b"", b"\n"])
    ),
    mark=st.sampled_from([b"", BOM]),
    unit_bytes=st.sampled_from([40, 1000, 10_000]),
    max_record_bytes=st.sampled_from([1, 20, 80, 1000]),
    block_bytes=st.sampled_from([1, 30, 200, 10_000]),
)
def test_records_are_the_same_in_blocks_and_one_by_one(
    tmp_path_factory: pytest.TempPathFactory,
    data: bytes,
    mark: bytes,
    unit_bytes: int,
    max_record_bytes: int,
    block_bytes: int,
) -> None:
    source = write(tmp_path_factory.getbasetemp() / "f.jsonl", mark + data)
    units = units_of(source, unit_bytes, max_record_bytes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "BLOCK_BYTES", block_bytes)
        # NaN is not equal to itself
        assert repr(read_in_blocks(units)) == repr(read(units))


@given(
    data=content,
    unit_bytes=st.integers(1, 200),
    max_record_bytes=st.sampled_from([1, 5, 20, 80, 112, 1000]),
    block=st.sampled_from([1, 2, 7, 1000]),
)
@example(data=b'{"a": 1}\n' * 5, unit_bytes=3, max_record_bytes=80, block=1000)  # lines end where units do
@example(data=b'{"a": 1}\n' * 5, unit_bytes=9, max_record_bytes=80, block=1000)
def test_the_units_of_a_compressed_file_are_those_of_the_plain_one(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, unit_bytes: int, max_record_bytes: int, block: int
) -> None:
    folder = tmp_path_factory.getbasetemp()
    units = units_of(write(folder / "b.jsonl", data), unit_bytes, max_record_bytes)
    plain = [open_unit(unit) for unit in units]
    for name in ("b.jsonl", "b.jsonl.gz", "b.jsonl.zst"):
        patch = small_blocks(block)
        units = units_of(write(folder / name, data), unit_bytes, max_record_bytes)
        wrapped = [open_unit(unit) for unit in units]
        patch.undo()
        assert [reader.digest for reader in wrapped] == [reader.digest for reader in plain]
        assert [reader.rows for reader in wrapped] == [reader.rows for reader in plain]
        assert [list(reader.records()) for reader in wrapped] == [list(reader.records()) for reader in plain]


@given(data=content, unit_bytes=st.integers(1, 200))
def test_the_bytes_that_units_digest_are_those_of_the_file(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, unit_bytes: int
) -> None:
    source = write(tmp_path_factory.getbasetemp() / "c.jsonl", data)
    starts = [0] + [at + 1 for at, byte in enumerate(data) if byte == 10 and at + 1 < len(data)]
    for unit in units_of(source, unit_bytes, max_record_bytes=7):
        own = [at for at in starts if unit.index * unit_bytes <= at < (unit.index + 1) * unit_bytes]
        own = own if data else []
        later = [at for at in starts if own and at > own[-1]]
        owned = data[own[0] : later[0] if later else len(data)] if own else b""
        header = b"lines, the first of the file\n" if unit.index == 0 else b"lines\n"
        assert open_unit(unit).digest == hashlib.sha256(header + owned).hexdigest()


@given(data=content, unit_bytes=st.integers(1, 200), limit=st.integers(1, 15))
def test_a_limit_takes_the_first_records_and_digests_what_was_read(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, unit_bytes: int, limit: int
) -> None:
    source = write(tmp_path_factory.getbasetemp() / "d.jsonl", data)
    units = list(limit_units(iter(units_of(source, unit_bytes)), limit))
    everything = read(units_of(source, unit_bytes))
    assert read(units) == everything[:limit]
    if len(everything) >= limit:
        # the rows read end with the last record, so what follows it does not matter
        assert sum(open_unit(unit).rows for unit in units) == everything[limit - 1][0] + 1
        last = everything[limit - 1][0]
        shorter = write(source.path.with_name("e.jsonl"), b"\n".join(data.split(b"\n")[: last + 1]) + b"\n")
        if data.count(b"\n") > last:  # its line has a newline here too
            again = list(limit_units(iter(units_of(shorter, unit_bytes)), limit))
            assert [open_unit(unit).digest for unit in again] == [open_unit(unit).digest for unit in units]


def test_a_limit_counts_over_all_sources_and_leaves_later_ones_unread(tmp_path: Path) -> None:
    first = write(tmp_path / "1.jsonl", b'{"a": 1}\n\n{"a": 2}\nbad\n')
    missing = Source("2.jsonl", tmp_path / "2.jsonl", Kind.LINES, Compression.NONE)
    units = (unit for index, source in enumerate([first, missing]) for unit in cut_units(source, index))
    [unit] = limit_units(units, 3)
    assert unit.max_records == 3
    assert [row for row, _ in open_unit(unit).records()] == [0, 2, 3]


def test_units_travel_to_another_process(tmp_path: Path) -> None:
    for name in ("a.jsonl", "a.jsonl.gz"):
        source = write(tmp_path / name, b'{"a": 1}\n' * 20)
        for unit in cut_units(source, 3, unit_bytes=50):
            copy = pickle.loads(pickle.dumps(unit))
            assert (copy.source, copy.index) == (3, unit.index)
            assert open_unit(copy).digest == open_unit(unit).digest


def test_a_line_over_the_limit_is_refused_with_its_length_and_never_held(tmp_path: Path) -> None:
    long = b'{"text": "' + b"x" * 3_000_000 + b'"}'
    data = b'{"a": 1}\n' + long + b'\n{"a": 2}'
    for name in ("a.jsonl", "a.jsonl.gz", "a.jsonl.zst"):
        units = units_of(write(tmp_path / name, data), unit_bytes=1000, max_record_bytes=10_000)
        records = read(units)
        assert [row for row, _ in records] == [0, 1, 2]
        refusal = records[1][1]
        assert refusal.reason == "too_large"
        assert "3,000,012 bytes" in refusal.detail
        assert "10,000" in refusal.detail
        assert refusal.detail.endswith('{"text": "xxxx' + "x" * 46 + "…")
        assert max(len(pickle.dumps(unit)) for unit in units) < 12_000


def test_a_line_of_exactly_the_limit_is_a_record_wherever_it_is_cut(tmp_path: Path) -> None:
    record = b'{"text": "' + b"x" * 88 + b'"}'
    assert len(record) == 100
    for mark, end in [(b"", b""), (b"", b"\n"), (BOM, b""), (BOM, b"\n")]:
        for name in ("a.jsonl", "a.jsonl.gz"):
            source = write(tmp_path / name, mark + record + end)
            for unit_bytes in (1, 50, 99, 100, 101, 104, 1000):
                assert read(units_of(source, unit_bytes, 100)) == [(0, {"text": "x" * 88})]
                [(row, refusal)] = read(units_of(source, unit_bytes, 99))
                assert (row, refusal.reason) == (0, "too_large")
                assert "100 bytes, over the limit of 99" in refusal.detail


def test_the_first_records_come_with_their_rows_in_the_source(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", b"\n" + b'{"a": 1}\n\n' * 200)
    assert head(source, 3) == [(1, {"a": 1}), (3, {"a": 1}), (5, {"a": 1})]
    assert len(head(source, 1000)) == 200
    assert head(write(tmp_path / "empty.jsonl", b"")) == []


@pytest.mark.parametrize("change", ["shrinks", "grows", "vanishes"])
def test_a_file_that_changes_after_it_was_cut_is_named(tmp_path: Path, change: str) -> None:
    source = write(tmp_path / "a.jsonl", b'{"a": 1}\n' * 20)
    units = units_of(source, 50)
    if change == "shrinks":
        source.path.write_bytes(b'{"a": 1}\n' * 10)
    elif change == "grows":
        source.path.write_bytes(b'{"a": 1}\n' * 21)
    else:
        source.path.unlink()
    with pytest.raises(BadData, match=r"a\.jsonl.*(changed while it was read|No such file)"):
        open_unit(units[1])


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    source = Source("a.jsonl", tmp_path / "a.jsonl", Kind.LINES, Compression.NONE)
    source.path.mkdir()
    with pytest.raises(BadData, match=r"a\.jsonl: Is a directory"):
        list(cut_units(source, 0))
