"""The benchmark runs from end to end on a small corpus; what it measures there means nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.__main__ import MEASURES

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    "measures",
    [
        # One peer, because each loads TRL and torch, which takes seconds.
        pytest.param(("text", "floors", "reading-back", "start-up"), id="one peer"),
        pytest.param(MEASURES, id="everything", marks=pytest.mark.soak),
    ],
)
def test_every_measure_gives_lines_with_figures(measures: tuple[str, ...], tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [sys.executable, "-m", "tests.bench", "--size", "1", "--rounds", "1", "--workers", "1"]
    done = subprocess.run(
        [*command, "--work", str(tmp_path / "work"), "--json", str(figures), "--only", *measures],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(figures.read_bytes())
    assert all(line["seconds"] > 0 for line in results["lines"])
    fills = [line["fill"] for line in results["lines"] if line["fill"] is not None]
    assert fills
    assert all(0 < fill <= 1 for fill in fills)
    assert all(measure in done.stdout for measure in measures)
    programs = {line["program"] for line in results["lines"]}
    assert {"packtool", "floor"} <= programs
    assert any("TRL" in program for program in programs)
