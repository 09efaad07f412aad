"""A packed dataset decoded, checked and measured: `packtool verify` and `packtool stats`."""

from pathlib import Path
from typing import Any

from tests.bench.measuring import Stopwatch, run_function, take_turns
from tests.bench.report import Line
from tests.bench.setting import Setting


def measure_reading_back(setting: Setting) -> list[Line]:
    """Of the dataset that the text measure packed."""
    packed = setting.work / "packed-text"
    if not packed.exists():
        return []
    timings = take_turns(
        {
            "decoding alone": lambda: run_function(decode, dataset=str(packed)),
            "verify": lambda: run_function(check, dataset=str(packed)),
            "stats": lambda: run_function(count, dataset=str(packed)),
        },
        setting.rounds,
    )
    return [
        Line(name, "packtool", timing, f"{timing.facts['tokens'] / 1e6 / timing.seconds:,.0f} Mtok/s")
        for name, timing in timings.items()
    ]


# --- the contestants -----------------------------------------------------------------------------------------


def decode(dataset: str) -> dict[str, Any]:
    """Every column of every shard, and nothing done with it: the floor of verify."""
    from packtool.manifest import read_manifest
    from packtool.shards import open_shard, read_row_group

    folder = Path(dataset)
    manifest = read_manifest(folder)
    with Stopwatch() as watch:
        tokens = 0
        for path in [folder / shard.name for shard in manifest.shards]:
            with open_shard(path) as file:
                groups = range(file.metadata.num_row_groups)
                tokens += sum(len(read_row_group(path, file, group, 0).input_ids) for group in groups)
    return {**watch.taken, "tokens": tokens}


def check(dataset: str) -> dict[str, Any]:
    """Every check of every shard."""
    from packtool.manifest import read_manifest
    from packtool.verification import verify

    with Stopwatch() as watch:
        report = verify(dataset)
    if not report.ok:
        raise RuntimeError(f"{dataset} does not pass its checks: {report}")
    return {**watch.taken, "tokens": read_manifest(Path(dataset)).tokens.out}


def count(dataset: str) -> dict[str, Any]:
    """The page of statistics."""
    from packtool.statistics import stats

    with Stopwatch() as watch:
        found = stats(dataset)
    return {**watch.taken, "tokens": found.tokens}
