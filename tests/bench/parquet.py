"""The same packs written under several Parquet settings: size, time to write, time to read. One thread.

packtool's own setting follows from these figures.
"""

from pathlib import Path
from typing import Any

from tests.bench.measuring import Run, Stopwatch, Timing, run_function, take_turns
from tests.bench.report import Line
from tests.bench.setting import Setting

_TOKEN_COLUMNS = ("input_ids", "labels", "position_ids")
_COLUMNS = (*_TOKEN_COLUMNS, "seq_lengths", "doc_ids", "doc_offsets")


def _encodings(tokens: str) -> dict[str, str]:
    """Positions and lengths as differences; ids and labels as ``tokens``, the rest plain."""
    special = {"input_ids": tokens, "labels": tokens, "position_ids": "DELTA_BINARY_PACKED"}
    special["seq_lengths"] = "DELTA_BINARY_PACKED"
    return {f"{name}.list.element": special.get(name, "PLAIN") for name in _COLUMNS}


_ZSTD = {"compression": "zstd", "compression_level": 1, "use_dictionary": False, "write_statistics": False}
_SPLIT = "BYTE_STREAM_SPLIT"
SETTINGS: dict[str, dict[str, Any]] = {
    "pyarrow's defaults": {},
    "plain, zstd 1": {**_ZSTD, "column_encoding": {f"{name}.list.element": "PLAIN" for name in _COLUMNS}},
    "deltas, zstd 1": {**_ZSTD, "column_encoding": _encodings("PLAIN")},
    "deltas, zstd 1, statistics": {**_ZSTD, "write_statistics": True, "column_encoding": _encodings("PLAIN")},
    "deltas, zstd 3": {**_ZSTD, "compression_level": 3, "column_encoding": _encodings("PLAIN")},
    "deltas, split bytes, zstd 1": {**_ZSTD, "column_encoding": _encodings(_SPLIT)},
    "deltas, split bytes, lz4": {
        "compression": "lz4",
        "use_dictionary": False,
        "write_statistics": False,
        "column_encoding": _encodings(_SPLIT),
    },
}


def measure_parquet(setting: Setting) -> list[Line]:
    """Of the dataset that the text measure packed."""
    packed = setting.work / "packed-text"
    if not packed.exists():
        return []
    path = setting.work / "settings.parquet"

    def write(name: str) -> Run:
        return run_function(write_and_read, dataset=str(packed), path=str(path), name=name)

    timings = take_turns({name: lambda name=name: write(name) for name in SETTINGS}, setting.rounds)
    return [Line("write Parquet", name, timing, _rate(timing)) for name, timing in timings.items()]


def _rate(timing: Timing) -> str:
    facts = timing.facts
    tokens = facts["tokens"]
    read = facts["read_seconds"]
    return (
        f"{facts['bytes'] / tokens:.2f} B/tok, {tokens / 1e6 / timing.seconds:.0f} / {tokens / 1e6 / read:.0f} Mtok/s"
    )


# --- the contestant ------------------------------------------------------------------------------------------


def write_and_read(dataset: str, path: str, name: str) -> dict[str, Any]:
    """Row groups in memory to a file; then all of it back to memory."""
    import pyarrow.parquet as pq

    from packtool.manifest import read_manifest
    from packtool.shards import SCHEMA, open_shard

    manifest = read_manifest(Path(dataset))
    tables = []
    for shard in manifest.shards:
        file = open_shard(Path(dataset) / shard.name)
        tables += [file.read_row_group(group, use_threads=False) for group in range(file.metadata.num_row_groups)]
    tables = [table.cast(SCHEMA) for table in tables]
    with Stopwatch() as writing, pq.ParquetWriter(path, SCHEMA, **SETTINGS[name]) as writer:
        for table in tables:
            writer.write_table(table, row_group_size=table.num_rows)
    tables.clear()
    written = pq.ParquetFile(path, memory_map=False)
    with Stopwatch() as reading:
        for group in range(written.metadata.num_row_groups):
            written.read_row_group(group, use_threads=False)
    size = Path(path).stat().st_size
    Path(path).unlink()
    return {
        **writing.taken,
        "read_seconds": reading.taken["seconds"],
        "bytes": size,
        "tokens": manifest.tokens.out,
    }
