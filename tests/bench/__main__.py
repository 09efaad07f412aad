"""`python -m tests.bench`: builds the corpus, runs the measures, prints their tables, keeps their figures."""

import argparse
import json
import os
import tempfile
from pathlib import Path

from rich.console import Console

from tests.bench.conversations import measure_conversations
from tests.bench.corpus import build
from tests.bench.end_to_end import measure_instructions, measure_text
from tests.bench.floors import measure_floors
from tests.bench.loader import measure_loader
from tests.bench.parquet import measure_parquet
from tests.bench.planning import measure_planning
from tests.bench.reading_back import measure_reading_back
from tests.bench.report import Line, machine, show, to_json
from tests.bench.setting import Setting
from tests.bench.start_up import measure_start_up
from tests.bench.tokenized import measure_tokenized

MEASURES = (
    "text",
    "floors",
    "instructions",
    "conversations",
    "tokenized",
    "planning",
    "parquet",
    "reading-back",
    "loader",
    "start-up",
)
"""In the order in which they run; some need what the first made."""

_WIDTH = 150
"""Of the tables in a file or a pipe."""


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="How fast packtool is.")
    parser.add_argument("--size", type=int, default=40, metavar="MB", help="text to make (40; a full run: 200)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each program; the median counts (3)")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="packtool's processes")
    parser.add_argument("--only", nargs="+", choices=MEASURES, default=MEASURES, help="some of the measures")
    parser.add_argument("--full", action="store_true", help="also plan 10^8 lengths (needs 3 GB)")
    parser.add_argument("--work", type=Path, metavar="DIR", help="scratch folder; it keeps the corpus")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure here")
    arguments = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    if arguments.work is not None:
        arguments.work.mkdir(parents=True, exist_ok=True)
        _run(arguments, arguments.work.resolve())
    else:
        with tempfile.TemporaryDirectory(prefix="packtool-bench-") as folder:
            _run(arguments, Path(folder))


def _run(arguments: argparse.Namespace, work: Path) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH
    about = machine()
    console.print(f"{about['processor']}, {about['cores']} cores, {about['memory_gb']} GB; Python {about['python']}")
    console.print(", ".join(f"{name} {number}" for name, number in about["versions"].items()))
    corpus = build(work, arguments.size)
    for name, held in corpus.found.items():
        console.print(f"{name}: {held}")
    console.print()
    setting = Setting(work, corpus, arguments.size, arguments.rounds, arguments.workers, arguments.full)
    lines: list[Line] = []
    for measure in MEASURES:
        if measure in arguments.only:
            found = _measure(measure, setting)
            if found:
                show(console, measure, found)
            lines += found
    if any(line.is_doubtful for line in lines):
        console.print("? = other work took much of the machine at the time: run again when it is quiet")
    if arguments.json is not None:
        options = {"size": arguments.size, "rounds": arguments.rounds, "workers": arguments.workers}
        arguments.json.write_text(json.dumps(to_json(corpus.found, options, lines), indent=2) + "\n")


def _measure(measure: str, setting: Setting) -> list[Line]:
    match measure:
        case "text":
            return measure_text(setting)
        case "floors":
            return measure_floors(setting)
        case "instructions":
            return measure_instructions(setting)
        case "conversations":
            return measure_conversations(setting)
        case "tokenized":
            return measure_tokenized(setting)
        case "planning":
            return measure_planning(setting)
        case "parquet":
            return measure_parquet(setting)
        case "reading-back":
            return measure_reading_back(setting)
        case "loader":
            return measure_loader(setting)
        case "start-up":
            return measure_start_up(setting)
        case _:
            raise AssertionError(measure)


if __name__ == "__main__":
    main()
