"""Small runs, where starting is what takes the time: `packtool --help`, and packing 1,000 records."""

import sys
from itertools import islice
from pathlib import Path

from tests.bench.measuring import Run, run_command, take_turns
from tests.bench.report import Line
from tests.bench.setting import SAMPLE_TOKENIZER, Setting

_RECORDS = 1_000


def measure_start_up(setting: Setting) -> list[Line]:
    """From the command's start to its end, interpreter and imports included."""
    source = setting.work / "records.jsonl"
    with setting.corpus.text.open("rb") as file:
        source.write_bytes(b"".join(islice(file, _RECORDS)))

    def pack(tokenizer: Path) -> Run:
        output = setting.fresh("small")
        options = ["--quiet", "--workers", str(setting.workers)]
        return run_command(_packtool("pack", str(source), "-o", str(output), "-t", str(tokenizer), *options))

    timings = take_turns(
        {
            "packtool --help": lambda: run_command(_packtool("--help")),
            "pack 1,000 records, 2k vocabulary": lambda: pack(SAMPLE_TOKENIZER),
            "pack 1,000 records, 128k vocabulary": lambda: pack(setting.tokenizer),
        },
        setting.rounds,
    )
    setting.fresh("small")
    return [Line(name, "packtool", timing) for name, timing in timings.items()]


def _packtool(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "packtool", *arguments]
