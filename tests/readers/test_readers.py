"""All kinds together: the same records from each, in memory that does not grow with the file."""

import contextlib
import gzip
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from packtool.errors import Refusal
from packtool.readers import UNIT_BYTES, column_types, cut_units, head, open_unit, unit_bytes_of
from packtool.sources import Kind, Source, find_sources

RECORDS: list[dict[str, Any]] = [
    {
        "text": f"record {number}, \u2028 é 😀 \x00 2024-01-0{number % 9}",
        "score": None if number % 3 else number / 7,
        "count": number << 40,
        "input_ids": list(range(number % 4)),
        "messages": [{"role": "user", "content": '[],{}\\"'}] * (number % 3),
    }
    for number in range(500)
]


def every_kind(folder: Path) -> list[Source]:
    """The records as each kind of file that packtool reads."""
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in RECORDS).encode()
    array = json.dumps(RECORDS, indent=1).encode()
    table = pa.Table.from_pylist(RECORDS)
    for name, data in {"lines.jsonl": lines, "lines.ndjson": lines, "lines.json": lines, "array.json": array}.items():
        (folder / name).write_bytes(data)
        (folder / f"{name}.gz").write_bytes(gzip.compress(data))
        (folder / f"{name}.zst").write_bytes(zstandard.compress(data))
    pq.write_table(table, folder / "table.parquet", row_group_size=130)
    for name, new in {"stream.arrow": pa.ipc.new_stream, "file.arrow": pa.ipc.new_file}.items():
        with new(folder / name, table.schema) as out:
            out.write_table(table, max_chunksize=130)
    return list(find_sources([folder]).sources)


def plain(record: Any) -> Any:
    """Arrays as the lists that they stand for."""
    if isinstance(record, dict):
        return {key: plain(value) for key, value in record.items()}
    return record.tolist() if isinstance(record, np.ndarray) else record


def test_every_kind_gives_the_same_records_at_the_same_rows(tmp_path: Path) -> None:
    sources = every_kind(tmp_path)
    assert len(sources) == 15
    assert {source.kind for source in sources} == set(Kind)
    for source in sources:
        rows: list[Any] = []
        in_blocks: list[Any] = []
        first = 0
        for unit in cut_units(source, 0, unit_bytes=3000):
            reader = open_unit(unit)
            assert reader.columnar == (source.kind in (Kind.PARQUET, Kind.ARROW))
            assert reader.count() == reader.rows
            rows += [(first + row, plain(record)) for row, record in reader.records()]
            blocks = [zip(block.rows.tolist(), block.records, strict=True) for block in reader.blocks()]
            in_blocks += [(first + row, plain(record)) for block in blocks for row, record in block]
            first += reader.rows
        assert rows == list(enumerate(RECORDS)), source.name
        assert in_blocks == rows, source.name
        assert [(row, plain(record)) for row, record in head(source, 7)] == list(enumerate(RECORDS))[:7]
        types = column_types(source)
        assert (types is not None) == (source.kind in (Kind.PARQUET, Kind.ARROW))
        assert types is None or list(types) == list(RECORDS[0])


BLANKS = st.sampled_from(["", " ", "\t \r", " " * 300])
LIMIT = 100


@given(
    st.lists(st.tuples(st.integers(12, 140), BLANKS, BLANKS), min_size=1, max_size=12), st.sampled_from(["\n", "\r\n"])
)
def test_what_stands_around_a_record_is_no_part_of_its_size(
    tmp_path_factory: pytest.TempPathFactory, records: list[tuple[int, str, str]], end: str
) -> None:
    folder = tmp_path_factory.getbasetemp() / "sizes"
    folder.mkdir(exist_ok=True)
    written = [f'{before}{{"text": "{"x" * (size - 12)}"}}{after}' for size, before, after in records]
    wanted = [None if size <= LIMIT else f"{size:,} bytes, over the limit of 100: " for size, _, _ in records]
    (folder / "a.jsonl").write_text(end.join(written), newline="")
    (folder / "b.jsonl.gz").write_bytes(gzip.compress((end.join(written) + end).encode()))
    (folder / "c.json").write_text("[" + f",{end}".join(written) + f"{end}]", newline="")
    for source in find_sources([folder]).sources:
        for unit_bytes in (40, 1 << 20):
            units = list(cut_units(source, 0, unit_bytes=unit_bytes, max_record_bytes=LIMIT))
            found = [record for unit in units for _, record in open_unit(unit).records()]
            in_blocks = [record for unit in units for block in open_unit(unit).blocks() for record in block.records]
            assert found == in_blocks
            assert len(found) == len(wanted) == sum(open_unit(unit).count() for unit in units)
            for record, start in zip(found, wanted, strict=True):
                assert isinstance(record, Refusal) == (start is not None)
                assert not isinstance(record, Refusal) or record.detail.startswith(start or "")


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.json"])
@pytest.mark.parametrize("unit_bytes", [40, 1 << 20])
def test_white_space_without_end_is_not_held(tmp_path: Path, name: str, unit_bytes: int) -> None:
    records = ['{"text": "a"}', " " * 70_000 + '{"text": "b"}', '{"text": "c"}']
    raw = f"[{','.join(records)}]" if name == "a.json" else "\n".join(records)
    (tmp_path / name).write_bytes(gzip.compress(raw.encode()) if name.endswith("gz") else raw.encode())
    [source] = find_sources([tmp_path / name]).sources
    units = list(cut_units(source, 0, unit_bytes=unit_bytes, max_record_bytes=LIMIT))
    first, second, third = [record for unit in units for _, record in open_unit(unit).records()]
    assert (first, third) == ({"text": "a"}, {"text": "c"})
    assert isinstance(second, Refusal)
    assert second.detail.startswith("70,013 bytes, over the limit of 100: ")


def test_what_save_to_disk_wrote_reads_back(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    saved = datasets.Dataset.from_list(RECORDS)
    saved.save_to_disk(tmp_path / "one", num_shards=3)
    datasets.DatasetDict({"test": saved.select([0]), "train": saved}).save_to_disk(tmp_path / "dict")
    for folder in ("one", "dict"):
        found = find_sources([tmp_path / folder])
        assert found.warnings == ()
        units = [unit for source in found.sources for unit in cut_units(source, 0)]
        assert [plain(record) for unit in units for _, record in open_unit(unit).records()] == RECORDS


READ = """
import resource, sys
from packtool.readers import cut_units, open_unit
from packtool.sources import find_sources

[source] = find_sources([sys.argv[1]]).sources
rows = refused = 0
for unit in cut_units(source, 0):
    reader = open_unit(unit)
    reader.digest
    for block in reader.blocks():
        refused += sum(not isinstance(record, dict) for record in block.records)
    rows += reader.rows
print(rows, refused, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def wrap(raw: Any, suffix: str) -> Any:
    if suffix == ".gz":
        return gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=1)
    return zstandard.ZstdCompressor().stream_writer(raw) if suffix == ".zst" else contextlib.nullcontext(raw)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["a.json", "a.json.gz", "a.jsonl", "a.jsonl.gz", "a.jsonl.zst"])
def test_two_gigabytes_are_read_in_bounded_memory(tmp_path: Path, name: str) -> None:
    record = json.dumps({"text": 'some, [text] with "quotes" \\ and é ' * 40}).encode()
    path = tmp_path / name
    is_array, repeats = ".json." in f"{name}.", 2**31 // len(record)
    between = b",\n" if is_array else b"\n"
    with path.open("wb") as raw, wrap(raw, path.suffix) as file:
        file.write(b"[" if is_array else b"")
        for start in range(0, repeats, 1000):
            stretch = min(1000, repeats - start)
            file.write(between.join([record] * stretch) + (between if start + stretch < repeats else b""))
        file.write(b"]" if is_array else b"\n")
    limit = 1 << 30  # of address space: libraries map several hundred megabytes of it
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path)],
        capture_output=True,
        check=True,
        env={"OPENBLAS_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)),
    )
    rows, refused, peak = map(int, done.stdout.split())
    assert (rows, refused) == (repeats, 0)
    assert peak < 300 << 10


def test_a_unit_of_an_unknown_kind_is_a_fault_of_the_caller() -> None:
    with pytest.raises(TypeError, match="no reader for str"):
        open_unit("unit")  # type: ignore[arg-type]


def test_a_source_of_some_size_has_units_for_several_workers() -> None:
    sizes = [1, UNIT_BYTES, UNIT_BYTES + 1, 5 * UNIT_BYTES, 8 * UNIT_BYTES, 8 * UNIT_BYTES + 1, 1000 * UNIT_BYTES]
    counts = [-(-size // unit_bytes_of(size)) for size in sizes]
    assert counts == [1, 1, 5, 10, 16, 9, 1000]
    assert all(unit_bytes_of(size) <= UNIT_BYTES for size in sizes)
