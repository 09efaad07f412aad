"""What packing text cannot go below with these parts: reading alone, encoding alone, writing Parquet alone.

Each is done by as many processes as packtool uses, side by side; its time is that of all their work, divided
by their number: no start-up, no waiting, nothing in between.
"""

import time
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.bench.end_to_end import run_packtool
from tests.bench.measuring import Contestant, Run, Stopwatch, Timing, run_function, take_turns
from tests.bench.report import Goal, Line
from tests.bench.setting import Setting

_BATCH = 1_000
_WHOLE = "text, end to end"


def measure_floors(setting: Setting) -> list[Line]:
    """The floors of the text corpus, and packtool's time for it, taken in turn with them, over their sum.

    Writing needs the dataset that the text measure packed; without it only the first two floors are measured.
    """
    source = str(setting.corpus.text)
    programs = {
        "reading and parsing alone": _program(read_alone, setting, source=source),
        "encoding (fastokens) alone": _program(encode_alone, setting, source=source, tokenizer=str(setting.tokenizer)),
    }
    if (packed := setting.work / "packed-text").exists():
        folder = str(setting.fresh("floor"))
        programs["writing Parquet alone"] = _program(write_alone, setting, dataset=str(packed), folder=folder)
        programs[_WHOLE] = lambda: run_packtool(setting, setting.corpus.text, "bfd_split", "packed-again")
    timings = take_turns(programs, setting.rounds)
    whole = timings.pop(_WHOLE, None)
    setting.fresh("packed-again")
    size = setting.corpus.text.stat().st_size
    lines = [Line(name, "floor", timing, _rate(size, timing)) for name, timing in timings.items()]
    if whole is not None:
        ratio = whole.seconds / sum(timing.seconds for timing in timings.values())
        lines.append(Line(_WHOLE, "packtool", whole, _rate(size, whole), None, ratio, "floors' sum", Goal(1.5, True)))
    return lines


def _program(function: Contestant, setting: Setting, **arguments: str) -> Callable[[], Run]:
    return lambda: run_function(function, workers=setting.workers, **arguments)


def _rate(size: int, timing: Timing) -> str:
    return f"{size / 1e6 / timing.seconds:.1f} MB/s of text"


# --- the contestants -----------------------------------------------------------------------------------------


def read_alone(source: str, workers: int) -> dict[str, Any]:
    """Bytes to parsed records."""
    return _shared_out(_read_unit, _units(source), workers)


def encode_alone(source: str, tokenizer: str, workers: int) -> dict[str, Any]:
    """Texts in memory to ids in numpy with the fastest exact encoder, unproven, nothing kept."""
    return _shared_out(_encode_unit, [(unit, tokenizer) for unit in _units(source)], workers)


def write_alone(dataset: str, folder: str, workers: int) -> dict[str, Any]:
    """Arrow tables in memory to Parquet on disk, synced."""
    from packtool.manifest import read_manifest
    from packtool.shards import open_shard

    Path(folder).mkdir(exist_ok=True)
    parts = []
    for shard in read_manifest(Path(dataset)).shards:
        groups = open_shard(Path(dataset) / shard.name).metadata.num_row_groups
        bounds = [groups * part // workers for part in range(workers + 1)]
        parts += [
            (f"{dataset}/{shard.name}", first, stop, f"{folder}/{shard.name}-{first}")
            for first, stop in pairwise(bounds)
            if first < stop
        ]
    return _shared_out(_write_part, parts, workers)


def _shared_out(work: Any, tasks: list[Any], workers: int) -> dict[str, Any]:
    from packtool.executor import run_in_order

    with Stopwatch() as watch:
        seconds = sum(run_in_order(work, tasks, workers)) / workers
    return {**watch.taken, "seconds": seconds}


def _units(source: str) -> list[Any]:
    from packtool.readers import cut_units
    from packtool.sources import find_sources

    return list(cut_units(find_sources((source,)).sources[0], 0))


def _read_unit(unit: Any) -> float:
    from packtool.readers import open_unit

    started = time.perf_counter()
    for _ in open_unit(unit).records():
        pass
    return time.perf_counter() - started


def _encode_unit(task: tuple[Any, str]) -> float:
    import numpy as np

    from packtool.readers import open_unit

    unit, tokenizer = task
    encoder = _encoder(tokenizer)
    texts = [record["text"] for _, record in open_unit(unit).records() if isinstance(record, dict)]
    started = time.perf_counter()
    for first in range(0, len(texts), _BATCH):
        ids, _ = encoder.encode_batch_flat(texts[first : first + _BATCH])
        np.frombuffer(ids, np.uint32)
    return time.perf_counter() - started


@lru_cache(maxsize=1)
def _encoder(tokenizer: str) -> Any:
    from fastokens import Tokenizer

    return Tokenizer.from_file(f"{tokenizer}/tokenizer.json")


def _write_part(task: tuple[str, int, int, str]) -> float:
    import os

    import pyarrow.parquet as pq

    from packtool import shards

    path, first, stop, output = task
    file = shards.open_shard(Path(path))
    tables = [shards.read_row_group(Path(path), file, group, 0).to_arrow() for group in range(first, stop)]
    started = time.perf_counter()
    with pq.ParquetWriter(output, shards.SCHEMA, **shards._WRITER_OPTIONS) as writer:
        for table in tables:
            writer.write_table(table, row_group_size=table.num_rows)
    with open(output, "rb+") as handle:  # noqa: PTH123
        os.fsync(handle.fileno())
    seconds = time.perf_counter() - started
    Path(output).unlink()
    return seconds
