"""A call of a library that does not come back ends its process, in one line; one in time is not disturbed."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from packtool import deadlines
from packtool.errors import PacktoolError
from packtool.executor import run_in_order
from tests import executor_work, runs
from tests.tokenizer_builder import byte_level, save

ROOT = Path(__file__).parent.parent
COMMAND = """
import sys
from packtool import deadlines
deadlines.SECONDS = 0.3
from packtool.__main__ import main
main()
"""


@pytest.fixture
def hard(tmp_path: Path) -> tuple[Path, Path]:
    """A tokenizer that tries every way to match, and a text for it."""
    path = save(byte_level(), tmp_path / "tok", {"eos_token": "</s>"}).path
    facts = json.loads(path.read_bytes())
    split = {"type": "Split", "pattern": {"Regex": "a*a*[^a]"}, "behavior": "Isolated", "invert": False}
    facts["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, facts["pre_tokenizer"]]}
    path.write_text(json.dumps(facts))
    return path.parent, runs.write_jsonl(tmp_path / "a.jsonl", [{"text": "a" * 4_000}])


def test_a_call_that_takes_far_too_long_ends_the_command(hard: tuple[Path, Path], tmp_path: Path) -> None:
    tokenizer, source = hard
    arguments = ["pack", str(source), "-o", str(tmp_path / "out"), "-t", str(tokenizer), "-q", "--workers", "1"]
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments], capture_output=True, text=True, check=False, cwd=ROOT, timeout=60
    )
    assert time.monotonic() - began < 30
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: one call of the tokenizer took more than 0 seconds of processor time")


def test_a_worker_that_takes_far_too_long_is_one_clear_error() -> None:
    with pytest.raises(PacktoolError, match=r"a worker process was ended \(SIGPROF\): one call of the tokenizer"):
        list(run_in_order(executor_work.be_late, [0.0, 30.0, 0.0], 2))


def test_calls_in_time_are_not_disturbed() -> None:
    assert list(run_in_order(executor_work.be_late, [0.05] * 12, 2)) == [0.05] * 12


def test_a_process_that_is_not_its_own_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "_bounded", False)
    with deadlines.in_time():
        assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)
    monkeypatch.setattr(deadlines, "_bounded", True)
    with deadlines.in_time():
        assert signal.getitimer(signal.ITIMER_PROF)[0] > 500
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)
