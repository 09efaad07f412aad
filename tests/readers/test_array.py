"""Arrays: the scanner against a reference that anyone can read, and every way in which an array can be wrong."""

import gzip
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from packtool.errors import BadData, Refusal
from packtool.readers import Unit, cut_units, decompress, head, limit_units, open_unit
from packtool.readers import array as array_reader
from packtool.readers.array import Scanner
from packtool.sources import Compression, Kind, Source

# bytes that matter to the scanner, and a few that do not
soup = st.text(alphabet='"\\,[]{} x\n', max_size=60).map(str.encode)
value = st.recursive(
    st.none() | st.integers() | st.text(alphabet='"\\,[]{}é\n x', max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
array = st.builds(
    lambda values, indent: json.dumps(values, indent=indent, ensure_ascii=False).encode(),
    st.lists(value, max_size=8),
    st.sampled_from([None, 0, 2]),
)


def reference(data: bytes) -> tuple[list[int], int | None]:
    """Boundaries after the opening bracket, and the closing one, one character at a time."""
    commas: list[int] = []
    depth, in_string, backslashes = 1, False, 0
    for at, byte in enumerate(data):
        character = chr(byte)
        if character == '"' and backslashes % 2 == 0:
            in_string = not in_string
        elif not in_string and character in "[{":
            depth += 1
        elif not in_string and character in "]}":
            depth -= 1
            if depth == 0:
                return commas, at
        elif not in_string and character == "," and depth == 1:
            commas.append(at)
        backslashes = backslashes + 1 if character == "\\" else 0
    return commas, None


def chunks(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def write(path: Path, data: bytes) -> Source:
    compression = Compression.GZIP if path.suffix == ".gz" else Compression.NONE
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return Source(name=path.name, path=path, kind=Kind.ARRAY, compression=compression)


def units_of(source: Source, unit_bytes: int = 1 << 20, max_record_bytes: int = 1 << 20) -> list[Unit]:
    return list(cut_units(source, 0, unit_bytes=unit_bytes, max_record_bytes=max_record_bytes))


def read(units: list[Unit]) -> list[tuple[int, Any]]:
    found: list[tuple[int, Any]] = []
    first = 0
    for unit in units:
        reader = open_unit(unit)
        found += [(first + row, record) for row, record in reader.records()]
        first += reader.rows
    return found


@given(data=soup | array.map(lambda data: data[1:]), size=st.integers(1, 7) | st.integers(8, 100))
@example(data=b'"\\\\\\\\",1]', size=1)
@example(data=b'"\\\\\\"",1]', size=3)
@example(data=b'\\\\\\",1', size=1)
def test_the_scanner_finds_what_the_reference_finds_however_blocks_fall(data: bytes, size: int) -> None:
    scanner = Scanner()
    commas: list[int] = []
    end = None
    for number, block in enumerate(chunks(data, size)):
        found, end = scanner.scan(block)
        assert found.dtype == np.int64
        commas += [number * size + int(at) for at in found]
        if end is not None:
            end += number * size
            break
    assert (commas, end) == reference(data)


@given(data=array, unit_bytes=st.integers(1, 100), before=st.sampled_from([b"", b" \r\n\t", b"\xef\xbb\xbf\n"]))
def test_elements_are_those_that_json_reads_wherever_the_array_is_cut(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, unit_bytes: int, before: bytes
) -> None:
    folder = tmp_path_factory.getbasetemp()
    values = json.loads(data)
    source = write(folder / "a.json", before + data + b" \n")
    records = read(units_of(source, unit_bytes))
    assert [row for row, _ in records] == list(range(len(values)))
    for (_, record), expected in zip(records, values, strict=True):
        if isinstance(expected, dict):
            assert record == expected
        else:
            assert record.reason == "not_object"
    wrapped = units_of(write(folder / "a.json.gz", before + data + b" \n"), unit_bytes)
    plain = units_of(source, unit_bytes)
    assert [open_unit(unit).digest for unit in wrapped] == [open_unit(unit).digest for unit in plain]


@given(
    data=(soup | array).map(lambda data: b" " * 70 + data),
    unit_bytes=st.integers(1, 100),
    max_record_bytes=st.integers(1, 100),
    block=st.integers(1, 9),
)
@example(data=b'"%s", "%s", 1]' % (b"x" * 85, b"y" * 40), unit_bytes=100, max_record_bytes=1, block=5)
def test_units_do_not_depend_on_how_blocks_fall(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, unit_bytes: int, max_record_bytes: int, block: int
) -> None:
    # white space before the first element makes it too large for some of the limits
    source = write(tmp_path_factory.getbasetemp() / "c.json", b"[" + data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decompress, "_READ", block)
        units = units_of(source, unit_bytes, max_record_bytes)
    whole = units_of(source, unit_bytes, max_record_bytes)
    assert [open_unit(unit).digest for unit in units] == [open_unit(unit).digest for unit in whole]
    assert [list(open_unit(unit).records()) for unit in units] == [list(open_unit(unit).records()) for unit in whole]


@given(data=soup, unit_bytes=st.integers(1, 30), max_record_bytes=st.integers(1, 40))
def test_any_bytes_after_a_bracket_end_in_rows_numbered_without_gaps(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, unit_bytes: int, max_record_bytes: int
) -> None:
    source = write(tmp_path_factory.getbasetemp() / "b.json", b"[" + data)
    records = read(units_of(source, unit_bytes, max_record_bytes))
    assert [row for row, _ in records] == list(range(len(records)))
    assert read(units_of(source, 1 << 20, max_record_bytes)) == records
    try:
        values = json.loads(b"[" + data)
    except ValueError:
        assert any(isinstance(record, Refusal) for _, record in records)
    else:
        assert len(records) == len(values)


@given(
    data=soup | array.map(lambda data: data[1:]), max_record_bytes=st.integers(1, 40), block_bytes=st.integers(1, 40)
)
def test_elements_are_the_same_in_blocks_and_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, max_record_bytes: int, block_bytes: int
) -> None:
    units = units_of(write(tmp_path_factory.getbasetemp() / "d.json", b"[" + data), 100, max_record_bytes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(array_reader, "BLOCK_BYTES", block_bytes)
        for unit in units:
            blocks = list(open_unit(unit).blocks())
            found = [pair for block in blocks for pair in zip(block.rows.tolist(), block.records, strict=True)]
            assert repr(found) == repr(list(open_unit(unit).records()))
            assert all(block.records for block in blocks)


A, B = {"a": 1}, {"b": 2}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ('[{"a": 1}, {"b": 2}]', [A, B]),
        ("[]", []),
        ("[ \n ]", []),
        ('[{"a": 1}, , {"b": 2}]', [A, "nothing between two commas", B]),
        ('[, {"b": 2}]', ["nothing between two commas", B]),
        ('[{"a": 1},]', [A, "after the last one"]),
        ('[{"a": 1},\n]', [A, "after the last one"]),
        ('[{"a": 1} {"b": 2}, {"b": 2}]', ["Extra data", B]),
        ('[{"a": 1], {"b": 2}]', ["Expecting ',' delimiter", B]),
        ('[{"a": 1}, {"b": 2}] x', [A, B, "more after the array's ]"]),
        ('[{"a": 1}]\n[{"a": 1}]', [A, "more after the array's ]"]),
        ("[]]", ["more after the array's ]"]),
        ('[{"a": 1}, {"b": 2}}', [A, B, "closed by } instead of ]"]),
        ("[}", ["closed by } instead of ]"]),
        ('[{"a": 1}', [A, "not closed"]),
        ('[{"a": 1} \n', [A, "not closed"]),
        ('[{"a": 1},', [A, "not closed"]),
        ('[{"a": 1}, {"b":', [A, "not closed"]),
        ('[{"a": 1}, {"b": "', [A, "not closed"]),
        ('[{"a": 1}, {"b": "x]', [A, "not closed"]),
        ("[", ["not closed"]),
        ('[{"a": 1}, "b', [A, "not closed"]),
        ('[{"a": 1}, 5, {"b": 2}]', [A, "a number, not an object", B]),
    ],
)
@pytest.mark.parametrize("unit_bytes", [1, 12, 1000])
def test_what_is_wrong_is_refused_at_its_element_and_the_rest_is_read(
    tmp_path: Path, data: str, expected: list[object], unit_bytes: int
) -> None:
    records = read(units_of(write(tmp_path / "a.json", data.encode()), unit_bytes))
    assert [row for row, _ in records] == list(range(len(expected)))
    for (_, record), wanted in zip(records, expected, strict=True):
        if isinstance(wanted, dict):
            assert record == wanted
        else:
            assert isinstance(record, Refusal)
            assert record.reason in ("bad_json", "not_object")
            assert str(wanted) in record.detail


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_an_element_over_the_limit_is_refused_with_its_length_and_never_held(tmp_path: Path, name: str) -> None:
    long = '{"text": "' + "x,[" * 1_000_000 + '"}'
    source = write(tmp_path / name, f'[{{"a": 1}},{long},{{"b": 2}}]'.encode())
    units = units_of(source, unit_bytes=1000, max_record_bytes=10_000)
    records = read(units)
    assert [records[0], records[2]] == [(0, A), (2, B)]
    assert records[1][1].reason == "too_large"
    assert "3,000,012 bytes" in records[1][1].detail
    assert max(len(pickle.dumps(unit)) for unit in units) < 3000
    # the digest still covers all of it
    other = write(tmp_path / name, f'[{{"a": 1}},{long[:-9]}X{long[-8:]},{{"b": 2}}]'.encode())
    digests = [[open_unit(unit).digest for unit in cut] for cut in (units, units_of(other, 1000, 10_000))]
    assert digests[0] != digests[1]
    # and does not depend on how much of it was held
    held = units_of(other, 1000, 10_000_000)
    assert [open_unit(unit).digest for unit in held] == digests[1]


@given(data=array, unit_bytes=st.integers(1, 100), limit=st.integers(1, 10))
def test_a_limit_takes_the_first_elements(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, unit_bytes: int, limit: int
) -> None:
    source = write(tmp_path_factory.getbasetemp() / "l.json", data)
    units = list(limit_units(iter(units_of(source, unit_bytes)), limit))
    assert read(units) == read(units_of(source))[:limit]
    assert sum(open_unit(unit).rows for unit in units) == min(limit, len(json.loads(data)))
    assert all(len(open_unit(unit).digest) == 64 for unit in units)


def test_digests_tell_boundaries_and_white_space_apart(tmp_path: Path) -> None:
    texts = ["[[1,2]]", "[1,2]", "[1, 2]", "[12]", "[1]", "[1,]", "[1"]
    digests = [
        [open_unit(unit).digest for unit in units_of(write(tmp_path / "a.json", text.encode()))] for text in texts
    ]
    assert len({tuple(digest) for digest in digests}) == len(texts)


def test_the_head_of_an_array_is_its_first_elements(tmp_path: Path) -> None:
    source = write(tmp_path / "a.json", json.dumps([A] * 300).encode())
    assert head(source, 2) == [(0, A), (1, A)]
    assert len(head(source)) == 100


def test_a_file_that_is_no_array_any_more_is_named(tmp_path: Path) -> None:
    for data in (b"", b" \n", b'{"a": 1}'):
        with pytest.raises(BadData, match=r"a\.json changed"):
            units_of(write(tmp_path / "a.json", data))
