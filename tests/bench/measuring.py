"""One program, run in a process of its own: how long it took, what memory its tree of processes held at most.

It knows nothing of what is measured. As a script it is that process: it calls a function by its name.
"""

import importlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil

_EVERY_SECONDS = 0.2
Contestant = Callable[..., dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one program."""

    seconds: float
    peak_pss: int
    """Bytes, of the process and its descendants together; shared pages count once."""
    others: float
    """Share of the machine's CPU time that went to processes that are none of the run's."""
    cpu: float
    """Seconds of CPU time within ``seconds``, of the process and its descendants: says more on a busy machine."""
    facts: dict[str, Any]
    """What the program says of its result."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Several runs of one program."""

    runs: tuple[Run, ...]

    @property
    def seconds(self) -> float:
        """The median."""
        return median(run.seconds for run in self.runs)

    @property
    def low(self) -> float:
        """The fastest."""
        return min(run.seconds for run in self.runs)

    @property
    def high(self) -> float:
        """The slowest."""
        return max(run.seconds for run in self.runs)

    @property
    def cpu(self) -> float:
        """The median."""
        return median(run.cpu for run in self.runs)

    @property
    def peak_pss(self) -> int:
        """The most of any run, in bytes."""
        return max(run.peak_pss for run in self.runs)

    @property
    def others(self) -> float:
        """The most of any run."""
        return max(run.others for run in self.runs)

    @property
    def facts(self) -> dict[str, Any]:
        """Of the last run."""
        return self.runs[-1].facts


class Stopwatch:
    """A block's time, and the CPU time of this process and of those that it started and that ended in the block."""

    def __init__(self) -> None:
        self.taken: dict[str, float] = {}

    def __enter__(self) -> "Stopwatch":
        self._cpu, self._started = time.process_time() + _waited_for(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        seconds, cpu = time.perf_counter() - self._started, time.process_time() + _waited_for() - self._cpu
        self.taken = {"seconds": seconds, "cpu_seconds": cpu}


def run_function(function: Contestant, **arguments: Any) -> Run:
    """Call a function of an importable module in a fresh process.

    Its result holds what its ``Stopwatch`` took (imports and preparation left out), and facts.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        name = f"{function.__module__}:{function.__qualname__}"
        run = run_command([sys.executable, "-m", __name__, name, json.dumps(arguments), str(answer)])
        facts = json.loads(answer.read_bytes())
    return Run(facts.pop("seconds"), run.peak_pss, run.others, facts.pop("cpu_seconds"), facts)


def run_command(command: list[str]) -> Run:
    """Run a command from start to end.

    Raises:
        RuntimeError: it failed; the text ends with what it said.
    """
    before, own_before, started = psutil.cpu_times(), _waited_for(), time.perf_counter()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        with _Watch(process.pid) as watch:
            code = process.wait()
            seconds = time.perf_counter() - started
        if code:
            said.seek(0)
            raise RuntimeError(f"{' '.join(command)} failed:\n{said.read().decode(errors='replace')[-4000:]}")
    after, own = psutil.cpu_times(), _waited_for() - own_before
    used = sum(getattr(after, name) - getattr(before, name) for name in ("user", "nice", "system"))
    others = max(0.0, used - own) / (seconds * (os.cpu_count() or 1))
    return Run(seconds, watch.peak, others, own, {})


def take_turns(programs: Mapping[str, Callable[[], Run]], rounds: int) -> dict[str, Timing]:
    """Run each program once a round; every other round the other way around, so that drift favours none."""
    runs: dict[str, list[Run]] = {name: [] for name in programs}
    for number in range(rounds):
        for name in list(programs)[:: -1 if number % 2 else 1]:
            runs[name].append(programs[name]())
    return {name: Timing(tuple(found)) for name, found in runs.items()}


class _Watch:
    """Looks at the memory of a tree of processes now and then, in a thread."""

    def __init__(self, pid: int) -> None:
        self.peak = 0
        self._root = pid
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "_Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while True:
            self.peak = max(self.peak, _tree_pss(self._root))
            if self._done.wait(_EVERY_SECONDS):
                return


def _tree_pss(root: int) -> int:
    total = 0
    try:
        process = psutil.Process(root)
        for member in (process, *process.children(recursive=True)):
            try:
                info = member.memory_full_info()
                total += getattr(info, "pss", info.uss)  # only Linux tells the proportional size
            except psutil.Error:
                pass  # it has ended since
    except psutil.Error:
        pass
    return total


def _waited_for() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _be_the_process(name: str, arguments: str, answer: str) -> None:
    module, _, function = name.partition(":")
    facts = getattr(importlib.import_module(module), function)(**json.loads(arguments))
    Path(answer).write_text(json.dumps(facts))


if __name__ == "__main__":
    _be_the_process(*sys.argv[1:])
