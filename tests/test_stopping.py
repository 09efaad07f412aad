"""Ctrl-C and its like, in the midst of whatever a run does: one line, within two seconds, and nothing is left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from packtool import stopping
from tests import runs

ROOT = Path(__file__).parent.parent
SLACK = 1.5
"""What starting and ending a process may take on a machine that has other things to do."""


class Ended(NamedTuple):
    """How a run ended."""

    code: int
    err: str
    seconds: float
    """From the signal to the end."""


def stopped(
    script: str, *signals: signal.Signals, apart: float = 0.0, mark: Path, group: bool = True, stdin: int | None = None
) -> Ended:
    """Start a script, send it the signals once ``mark`` is there, and wait for its end; nobody of it may be left."""
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=ROOT,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        stdin=stdin,
    )
    deadline = time.monotonic() + 60
    while not mark.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert mark.exists(), process.stderr and process.stderr.read()
    began = time.monotonic()
    for number in signals:
        if group:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        time.sleep(apart)
    _, err = process.communicate(timeout=60)
    seconds = time.monotonic() - began
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and _members(process.pid):
        time.sleep(0.05)
    assert _members(process.pid) == []
    lines = [line for line in err.splitlines() if "tokenize" not in line]
    return Ended(process.returncode, "\n".join(lines), seconds)


def assert_tidy(output: Path, ended: Ended) -> None:
    """Only what a rerun uses is left, unless the run was too slow to unwind and was ended."""
    if ended.seconds < stopping.SECONDS:
        left = [path.name for path in output.rglob("*")]
        assert not [name for name in left if ".tmp-" in name or name.endswith("lock")]


def _members(group: int) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (psutil.Error, ProcessLookupError):
            pass
    return found


def script(source: Path, output: Path, workers: int, before: str = "", *more: str) -> str:
    """The console script, with something done ``before``."""
    arguments = ["pack", str(source), "-o", str(output), "-t", str(runs.TOKENIZER), "--workers", str(workers), *more]
    start = "import sys\nfrom pathlib import Path\nfrom packtool import __main__, cli\n"
    return f"{start}{before}\nsys.argv[1:] = {arguments!r}\n__main__.main()"


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text that takes this tokenizer a while, in many units and short calls."""
    path = tmp_path_factory.mktemp("in") / "a.jsonl"
    path.write_bytes(b"".join(b'{"text": "%s"}\n' % (b"word %d " % n * 9) for n in range(400_000)))
    return path


@pytest.fixture(scope="module")
def one_record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One text that takes the tokenizer a minute, in one call of its library."""
    path = tmp_path_factory.mktemp("in") / "a.jsonl"
    path.write_bytes(b'{"text": "%s"}\n' % b"".join(b"word %d " % n for n in range(5_000_000)))
    return path


SIGNALS = [
    (signal.SIGINT, 130, "error: stopped; run the same command again to go on from here"),
    (signal.SIGTERM, 143, "error: stopped by SIGTERM; run the same command again to go on from here"),
    (signal.SIGHUP, 129, "error: stopped by SIGHUP; run the same command again to go on from here"),
]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("number", "code", "err"), SIGNALS)
def test_a_run_that_is_told_to_stop_says_how_to_go_on(
    tmp_path: Path, large: Path, workers: int, number: signal.Signals, code: int, err: str
) -> None:
    output = tmp_path / "out"
    ended = stopped(script(large, output, workers), number, mark=output / ".partial" / "store")
    assert (ended.code, ended.err) == (code, err)
    assert ended.seconds < 2 + SLACK
    assert runs.names(output) == [".partial"]
    assert_tidy(output, ended)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("apart", [0.0, 0.02, 0.3])
def test_signals_after_the_first_change_nothing(tmp_path: Path, large: Path, workers: int, apart: float) -> None:
    output = tmp_path / "out"
    numbers = [signal.SIGINT, signal.SIGINT, signal.SIGTERM, signal.SIGINT]
    ended = stopped(script(large, output, workers), *numbers, apart=apart, mark=output / ".partial" / "store")
    assert (ended.code, ended.err) in ((130, SIGNALS[0][2]), (143, SIGNALS[1][2])), "whichever came in first"
    assert ended.seconds < 2 + SLACK
    assert_tidy(output, ended)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_library_that_does_not_come_back_is_not_waited_for(tmp_path: Path, one_record: Path, workers: int) -> None:
    output = tmp_path / "out"
    ended = stopped(script(one_record, output, workers), signal.SIGINT, mark=output / ".partial" / "store")
    assert (ended.code, ended.err) == (130, SIGNALS[0][2])
    assert ended.seconds < 2 + SLACK
    # What is left then does not hinder the next run, nor outlive it.
    small = runs.write_jsonl(tmp_path / "b.jsonl", [{"text": "hello there"}])
    runs.run(small, output, overwrite=True)
    assert not (output / ".partial").exists()


@pytest.mark.parametrize("step", ["make_plan", "write_shards", "write_inventory", "settle"])
def test_every_step_of_a_run_can_be_stopped(tmp_path: Path, step: str) -> None:
    source = runs.write_jsonl(tmp_path / "a.jsonl", [{"input_ids": [1, 2, 3]}] * 100)
    mark = tmp_path / "mark"
    before = f"""
from packtool import run
import time
real = run.{step}
def slow(*arguments):
    Path({str(mark)!r}).touch()
    time.sleep(30)
    return real(*arguments)
run.{step} = slow
"""
    ended = stopped(script(source, tmp_path / "out", 1, before), signal.SIGINT, mark=mark)
    assert (ended.code, ended.err.splitlines()[-1]) == (130, SIGNALS[0][2])
    assert ended.seconds < 2 + SLACK
    manifest = runs.run(source, tmp_path / "out")
    assert manifest.documents.out == 100


def test_a_run_under_nohup_is_not_stopped_by_a_terminal_that_goes_away(tmp_path: Path) -> None:
    source = runs.write_jsonl(tmp_path / "a.jsonl", [{"input_ids": [1, 2, 3]}] * 100)
    mark = tmp_path / "mark"
    before = f"""
import signal, time
signal.signal(signal.SIGHUP, signal.SIG_IGN)
from packtool import run
real = run.make_plan
def slow(*arguments):
    Path({str(mark)!r}).touch()
    time.sleep(1)
    return real(*arguments)
run.make_plan = slow
"""
    ended = stopped(script(source, tmp_path / "out", 2, before), signal.SIGHUP, mark=mark)
    assert ended.code == 0
    assert (tmp_path / "out" / "manifest.json").exists()


IN_A_CALLBACK = """
import os, signal, sys, time, weakref
from packtool.stopping import Stopped, stop_message, stop_on_signals

class Thing:
    pass

def told_inside(_):
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(1000):
        pass

stop_on_signals(goes_on=True)
thing = Thing()
seen = weakref.ref(thing, told_inside)
began = time.monotonic()
try:
    del thing
    time.sleep(10)
except Stopped as stopped:
    print(stop_message(stopped, goes_on=True), time.monotonic() - began < 1.2)
"""


def test_a_signal_inside_a_callback_that_lets_nothing_out_is_heard_after_it() -> None:
    done = subprocess.run([sys.executable, "-c", IN_A_CALLBACK], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("True\n")


WHILE_IMPORTING = """
import os, sys
from packtool import __main__

class Sender:
    # Sends a signal to this process as a module is about to be imported.
    def find_spec(self, name, *_):
        if name == module:
            os.kill(os.getpid(), number)
            for _ in range(1000):
                pass

module, number = sys.argv[1], int(sys.argv[2])
sys.argv[1:] = sys.argv[3:]
sys.meta_path.insert(0, Sender())
__main__.main()
"""


@pytest.mark.parametrize(
    "module",
    ["packtool.stopping", "typer", "packtool.errors", "pydantic", "numpy", "packtool.terminal"],
)
@pytest.mark.parametrize(("number", "code", "told"), SIGNALS)
def test_a_signal_while_a_module_is_imported_is_heard_when_that_is_whole(
    tmp_path: Path, module: str, number: signal.Signals, code: int, told: str
) -> None:
    source = runs.write_jsonl(tmp_path / "a.jsonl", [{"text": "a"}])
    arguments = ["pack", source, "-o", tmp_path / "out", "-t", runs.TOKENIZER, "--workers", "1"]
    command = [sys.executable, "-c", WHILE_IMPORTING, module, str(number.value), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    # Before it is settled what signals mean nothing is said.
    assert (done.returncode, done.stderr) == (code, "" if module == "packtool.stopping" else told + "\n")
    assert not (tmp_path / "out" / "manifest.json").exists()
