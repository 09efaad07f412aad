"""Whole runs in a test: sources written from records, packs read back as plain lists, folders as bytes."""

import gzip
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from packtool.config import PackConfig
from packtool.manifest import Manifest
from packtool.progress import Notice, Progress
from packtool.readers import cut_units
from packtool.run import pack
from packtool.shards import PackBatch, check_schema, open_shard, read_row_group

TOKENIZER = Path(__file__).parent.parent / "sample_data" / "tokenizer"
COLUMNS = ("input_ids", "labels", "position_ids", "seq_lengths", "doc_ids", "doc_offsets")
Row = dict[str, list[int]]


def write_jsonl(path: Path, records: Iterable[Any]) -> Path:
    """One record a line; bytes and strings stand as they are."""
    with path.open("wb") as file:
        for record in records:
            line = record if isinstance(record, bytes) else json.dumps(record, ensure_ascii=False).encode()
            file.write(line + b"\n")
    return path


def config(sources: Path | list[Path], output: Path, **options: Any) -> PackConfig:
    """Options of a run in this process with the sample tokenizer, unless ``options`` say otherwise."""
    names = [str(source) for source in (sources if isinstance(sources, list) else [sources])]
    values: dict[str, Any] = {"tokenizer": str(TOKENIZER), "workers": 1, **options}
    return PackConfig.checked({"sources": names, "output": output, **values})


@dataclass
class Heard:
    """A listener that remembers."""

    events: list[Progress | Notice]

    def __call__(self, event: Progress | Notice) -> None:
        self.events.append(event)

    @property
    def notices(self) -> list[str]:
        """What was told in lines."""
        return [event.text for event in self.events if isinstance(event, Notice)]


def run(sources: Path | list[Path], output: Path, **options: Any) -> Manifest:
    """Pack in this process."""
    return pack(config(sources, output, **options))


def shards(folder: Path) -> list[Path]:
    """The shards in order."""
    return sorted(folder.glob("train-*.parquet"))


def rows(folder: Path) -> list[Row]:
    """Every pack of a dataset, in order, read without packtool."""
    return [row for shard in shards(folder) for row in pq.read_table(shard).to_pylist()]


def batches(shard: Path) -> Iterator[PackBatch]:
    """The packs of a shard as packtool reads them, a row group at a time."""
    with open_shard(shard) as file:
        check_schema(shard, file.schema_arrow)
        first = 0
        for group in range(file.metadata.num_row_groups):
            batch = read_row_group(shard, file, group, first)
            yield batch
            first += batch.packs


def rejects(folder: Path) -> list[dict[str, Any]]:
    """The rows of rejects.jsonl."""
    return [json.loads(line) for line in (folder / "rejects.jsonl").read_text().splitlines()]


def segments(row: Row) -> list[tuple[int, int, tuple[int, ...]]]:
    """(doc id, offset, tokens) of a pack's segments."""
    found, start = [], 0
    for length, doc_id, offset in zip(row["seq_lengths"], row["doc_ids"], row["doc_offsets"], strict=True):
        found.append((doc_id, offset, tuple(row["input_ids"][start : start + length])))
        start += length
    return found


def content(folder: Path, *, without_run: bool = True) -> dict[str, bytes]:
    """Every file below a folder, by name; run.json is the one that may differ between equal runs."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not (without_run and path.name == "run.json")
    }


def names(folder: Path) -> list[str]:
    """What lies in a folder, sorted."""
    return sorted(path.name for path in folder.iterdir())


def state(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Inode, time of the last change, and bytes of everything in a folder: equal where nothing was touched."""
    found = {}
    for path in sorted([folder, *folder.rglob("*")]):
        stat = path.lstat()
        if path.is_symlink():
            raw = os.fsencode(path.readlink())
        else:
            raw = path.read_bytes() if path.is_file() else str(names(path)).encode()
        found[str(path)] = (stat.st_ino, stat.st_mtime_ns, raw)
    return found


def small_units(patch: pytest.MonkeyPatch, unit_bytes: int) -> None:
    """Cut sources into units of so many bytes, in this process, so that small inputs have many."""

    def cut(*arguments: Any, **options: Any) -> Any:
        return cut_units(*arguments, **{**options, "unit_bytes": unit_bytes})

    patch.setattr("packtool.intake.cut_units", cut)


def small_row_groups(patch: pytest.MonkeyPatch, tokens: int) -> None:
    """Row groups of so many tokens, so that small shards have many."""
    patch.setattr("packtool.shards.ROW_GROUP_TOKENS", tokens)


def token_records(documents: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Records of tokens: ``ids`` and, where given, which of them carry loss."""
    records = []
    for document in documents:
        ids = list(document["ids"])
        record = {"input_ids": ids}
        if document.get("trained") is not None:
            record["labels"] = [id if train else -100 for id, train in zip(ids, document["trained"], strict=True)]
        records.append(record)
    return records


def converted(source: Path, target: Path) -> Path:
    """The records of a JSONL file in the form that the target's name says."""
    raw = source.read_bytes()
    records = [json.loads(line) for line in raw.splitlines()]
    match "".join(target.suffixes):
        case ".jsonl":
            target.write_bytes(raw)
        case ".jsonl.gz":
            target.write_bytes(gzip.compress(raw, mtime=0))
        case ".jsonl.zst":
            target.write_bytes(zstandard.compress(raw))
        case ".json":
            target.write_text(json.dumps(records))
        case ".parquet":
            pq.write_table(pa.Table.from_pylist(records), target, row_group_size=100)
        case ".arrow":
            with pa.OSFile(str(target), "wb") as file:
                table = pa.Table.from_pylist(records)
                with pa.ipc.new_stream(file, table.schema) as writer:
                    writer.write_table(table, max_chunksize=100)
        case other:
            raise ValueError(other)
    return target
