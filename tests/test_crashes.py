"""Runs with workers that are killed as a whole, again and again at random moments, until one ends.

After each kill nothing of a dataset is visible, or all of it; in the end every byte is that of an undisturbed run,
and the runs after the first said what they reused.
"""

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from packtool.errors import PacktoolError
from packtool.statistics import stats
from packtool.verification import verify
from tests import runs

ROOT = Path(__file__).parent.parent


def write_text(path: Path) -> Path:
    """Some seconds of work for the reference encoder, in several units, with records that are left out."""
    with path.open("w") as file:
        for n in range(100_000):
            file.write(
                '{"text": "%s"}\n' % ("" if n % 997 == 0 else f"line {n} of a text that nobody reads " * (1 + n % 9))
            )
    return path


def command(source: Path, output: Path) -> list[str]:
    """The command that is killed."""
    options = ["-L", "512", "--workers", "2", "--group-tokens", "300k", "--shards", "5"]
    return [
        sys.executable,
        "-m",
        "packtool",
        "pack",
        str(source),
        "-o",
        str(output),
        "-t",
        str(runs.TOKENIZER),
        *options,
    ]


def killed_after(arguments: list[str], seconds: float) -> tuple[int, str]:
    """Kill the run and its workers after so long; how it ended, and what it had said."""
    process = subprocess.Popen(
        arguments, cwd=ROOT, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    time.sleep(seconds)
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    _, err = process.communicate(timeout=60)
    return process.returncode, err


def assert_all_or_nothing(output: Path, wanted: dict[str, bytes]) -> None:
    """packtool's readers fail, or see what they should."""
    try:
        found = stats(output)
    except PacktoolError:
        return
    assert found.packs == runs_packs(wanted)
    assert verify(output).ok


def runs_packs(wanted: dict[str, bytes]) -> int:
    match = re.search(rb'"packs": (\d+)', wanted["manifest.json"])
    assert match is not None
    return int(match[1])


@pytest.mark.parametrize("kills", [10, pytest.param(110, marks=pytest.mark.soak)])
def test_a_run_killed_again_and_again_ends_with_the_same_bytes(tmp_path: Path, kills: int) -> None:
    source = write_text(tmp_path / "a.jsonl")
    began = time.monotonic()
    subprocess.run(command(source, tmp_path / "wanted"), check=True, cwd=ROOT, capture_output=True)
    whole = time.monotonic() - began
    wanted = runs.content(tmp_path / "wanted")
    chance = random.Random(kills)
    done = resumed = reused = rounds = 0
    while done < kills:
        rounds += 1
        output = tmp_path / str(rounds)
        while True:
            # Most kills come early in what is left to do, as what was done is not done again.
            code, err = killed_after(command(source, output), whole * chance.uniform(0.2, 1.1))
            assert "Traceback" not in err
            if code == 0:
                break
            done += 1
            resumed += "continuing an unfinished run" in err
            reused += "were tokenized before" in err or "were written before" in err
            assert_all_or_nothing(output, wanted)
            if done >= kills + 20:
                subprocess.run(command(source, output), check=True, cwd=ROOT, capture_output=True)
                break
        assert runs.content(output) == wanted
        assert runs.names(output) == runs.names(tmp_path / "wanted")
    assert resumed
    assert reused or kills < 20
    print(f"{done} kills of the whole tree in {rounds} runs, {reused} reused what was finished: all ended identical")
