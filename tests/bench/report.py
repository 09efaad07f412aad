"""Lines of results as a table for people and as JSON for programs. It measures nothing."""

import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from tests.bench.measuring import Timing

_BUSY = 0.2
_LIBRARIES = ("packtool", "datasets", "numpy", "orjson", "pyarrow", "tokenizers", "torch", "transformers", "trl")


@dataclass(frozen=True, slots=True)
class Goal:
    """What a ratio should be."""

    ratio: float
    at_most: bool = False
    """Otherwise at least."""

    def holds(self, ratio: float) -> bool:
        """Whether ``ratio`` is on the right side."""
        return ratio <= self.ratio if self.at_most else ratio >= self.ratio

    def __str__(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.ratio:g}"


@dataclass(frozen=True, slots=True)
class Line:
    """One program's result."""

    what: str
    program: str
    timing: Timing
    rate: str = ""
    """How fast that is, with its unit."""
    fill: float | None = None
    ratio: float | None = None
    """This program against the one that ``against`` names: how many times faster, or its time over theirs."""
    against: str = ""
    goal: Goal | None = None

    @property
    def is_doubtful(self) -> bool:
        """Whether there is a goal, and other work took so much of the machine that the ratio may be an accident."""
        return self.goal is not None and self.timing.others > _BUSY

    def to_json(self) -> dict[str, Any]:
        """Everything, plain."""
        return {
            "what": self.what,
            "program": self.program,
            "seconds": self.timing.seconds,
            "seconds_of_runs": [run.seconds for run in self.timing.runs],
            "cpu_seconds": self.timing.cpu,
            "peak_pss_bytes": self.timing.peak_pss,
            "cpu_share_of_others": self.timing.others,
            "rate": self.rate,
            "fill": self.fill,
            "ratio": self.ratio,
            "against": self.against,
            "goal": None if self.goal is None else {**asdict(self.goal), "holds": self.goal.holds(self.ratio or 0)},
            "doubtful": self.is_doubtful,
            "facts": self.timing.facts,
        }


def show(console: Console, title: str, lines: Sequence[Line]) -> None:
    """Print the lines of one measure."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("")
    table.add_column("program", no_wrap=True)
    for name in ("seconds", "min-max", "cpu s", "rate", "fill", "peak MB", "others", "ratio", "goal"):
        table.add_column(name, justify="right", no_wrap=True)
    before = ""
    for line in lines:
        timing = line.timing
        table.add_row(
            line.what if line.what != before else "",
            line.program,
            _seconds(timing.seconds),
            f"{_seconds(timing.low)}-{_seconds(timing.high)}" if len(timing.runs) > 1 else "",
            _seconds(timing.cpu),
            line.rate,
            "" if line.fill is None else f"{line.fill:.5f}",
            f"{timing.peak_pss / 1e6:,.0f}" if timing.peak_pss else "",
            f"{timing.others:.0%}",
            "" if line.ratio is None else f"{line.ratio:.2f}x {line.against}",
            _goal(line),
        )
        before = line.what
    console.print(table)
    console.print()


def _goal(line: Line) -> str:
    if line.goal is None or line.ratio is None:
        return ""
    doubt = "?" if line.is_doubtful else ""
    colour, answer = ("green", "yes") if line.goal.holds(line.ratio) else ("yellow", "no")
    return f"{line.goal} [{colour}]{answer}{doubt}[/]"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f}" if seconds < 1 else f"{seconds:.2f}" if seconds < 100 else f"{seconds:.0f}"


def machine() -> dict[str, Any]:
    """What it ran on."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in _LIBRARIES},
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:  # noqa: PTH123
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def to_json(corpus: dict[str, str], arguments: dict[str, Any], lines: Iterable[Line]) -> dict[str, Any]:
    """A whole run."""
    return {
        "machine": machine(),
        "arguments": arguments,
        "corpus": corpus,
        "lines": [line.to_json() for line in lines],
    }
