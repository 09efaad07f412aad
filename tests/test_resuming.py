"""Runs that are killed and run again: equal bytes in the end, nothing temporary left, no part published as whole."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from packtool.run import pack
from tests import runs

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokens, with a few records that are left out."""
    records = [{"input_ids": [1 + (n * 7 + i) % 499 for i in range(n * n % 61)]} for n in range(300)]
    return runs.write_jsonl(tmp_path_factory.mktemp("in") / "a.jsonl", records)


def killed_everywhere(folder: Path, **job: Any) -> list[dict[str, Any]]:
    """What became of runs that were killed at many points."""
    command = [sys.executable, "-m", "tests.kill_points", json.dumps({"folder": str(folder), **job}, default=str)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert results.pop() == {"point": results[-1]["point"] + job["step"], "ended": True}
    return results


OPTIONS = {"max_length": 64, "group_tokens": 4000}


every_point = pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.soak)])


@every_point
def test_a_run_killed_before_any_change_to_the_disk_ends_with_the_same_bytes(
    tmp_path: Path, source: Path, step: int
) -> None:
    runs.run(source, tmp_path / "wanted", **OPTIONS)
    (tmp_path / "k").mkdir()
    results = killed_everywhere(
        tmp_path / "k",
        source=source,
        wanted=tmp_path / "wanted",
        options=OPTIONS,
        seed=None,
        first=step // 2,
        step=step,
    )
    assert len(results) * step > 130
    kinds = {result["kind"] for result in results}
    assert len(kinds) >= min(30, len(results) - 3), kinds
    print(f"{len(results)} kill points of {len(kinds)} kinds: {len(results)} resumes identical")
    for result in results:
        assert result["rc"] == 0, result
        assert result["equal"], result
        assert not result["left"], result
        assert not result["partial"], result
        # The card comes first and the manifest last.
        seen = [name for name in result["seen"] if name != ".partial"]
        assert not seen or "README.md" in seen, result
        assert "manifest.json" not in seen or len(seen) == len(list((tmp_path / "wanted").iterdir())), result


@every_point
def test_a_run_that_replaces_a_dataset_killed_before_any_change_ends_with_the_new_bytes(
    tmp_path: Path, source: Path, step: int
) -> None:
    runs.run(source, tmp_path / "old", max_length=32, group_tokens=2000)
    runs.run(source, tmp_path / "wanted", **OPTIONS)
    (tmp_path / "k").mkdir()
    results = killed_everywhere(
        tmp_path / "k",
        source=source,
        wanted=tmp_path / "wanted",
        options={**OPTIONS, "overwrite": True},
        seed=tmp_path / "old",
        first=step // 2,
        step=step,
    )
    assert len(results) * step > 150
    print(f"{len(results)} kill points while a dataset is replaced: {len(results)} resumes identical")
    for result in results:
        assert result["rc"] == 0, result
        assert result["equal"], result
        assert not result["left"], result
        assert not result["partial"], result


@pytest.mark.parametrize("event", [1, 4, 9, 11])
def test_a_whole_group_of_processes_killed_at_work_ends_with_the_same_bytes(
    tmp_path: Path, source: Path, event: int
) -> None:
    script = f"""
import os, signal
from pathlib import Path
import pytest
from tests import runs
from packtool.run import pack
heard = 0
def listener(event):
    global heard
    heard += 1
    if heard > {event}:
        os.killpg(0, signal.SIGKILL)
runs.small_units(pytest.MonkeyPatch(), 2000)
pack(runs.config(Path({str(source)!r}), Path({str(tmp_path / "out")!r}), workers=2, max_length=64, shards=6), listener)
"""
    killed = subprocess.run([sys.executable, "-c", script], cwd=ROOT, start_new_session=True, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert (tmp_path / "out" / ".partial" / "command.json").exists()
    heard = runs.Heard([])
    with pytest.MonkeyPatch.context() as patch:
        runs.small_units(patch, 2000)
        options = {"max_length": 64, "shards": 6}
        pack(runs.config(source, tmp_path / "out", **options), heard)
        assert "continuing an unfinished run of this command" in heard.notices
        if event > 4:
            assert any("tokenized before" in text for text in heard.notices)
        runs.run(source, tmp_path / "wanted", **options)
    assert runs.content(tmp_path / "out") == runs.content(tmp_path / "wanted")


def test_killed_runs_of_other_options_do_not_leak_into_this_one(tmp_path: Path, source: Path) -> None:
    """A run is killed once its shards are written; with --overwrite another command starts anew there."""

    class Killed(BaseException):
        pass

    def stop(*_: object) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("packtool.output.OutputFolder.publish", stop)
        with pytest.raises(Killed):
            runs.run(source, tmp_path / "out", max_length=64)
    runs.run(source, tmp_path / "out", max_length=128, overwrite=True)
    runs.run(source, tmp_path / "wanted", max_length=128)
    assert runs.content(tmp_path / "out") == runs.content(tmp_path / "wanted")


def test_shards_that_are_whole_are_not_written_again(tmp_path: Path, source: Path) -> None:
    class Killed(BaseException):
        pass

    def stop(*_: object) -> None:
        raise Killed

    options = {"max_length": 64, "shards": 4}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("packtool.output.OutputFolder.publish", stop)
        with pytest.raises(Killed):
            runs.run(source, tmp_path / "out", **options)
    ready = tmp_path / "out" / ".partial" / "ready"
    before = {path.name: path.stat().st_mtime_ns for path in runs.shards(ready)}
    cut_short, flipped = ready / "train-00002-of-00004.parquet", ready / "train-00003-of-00004.parquet"
    cut_short.write_bytes(cut_short.read_bytes()[:-1])
    raw = bytearray(flipped.read_bytes())
    raw[len(raw) // 2] ^= 1
    flipped.write_bytes(raw)
    time.sleep(0.02)
    heard = runs.Heard([])
    pack(runs.config(source, tmp_path / "out", **options), heard)
    assert "2 of 4 shards were written before" in heard.notices
    after = {path.name: path.stat().st_mtime_ns for path in runs.shards(tmp_path / "out")}
    assert [name for name in before if before[name] != after[name]] == [cut_short.name, flipped.name]
    runs.run(source, tmp_path / "wanted", **options)
    assert runs.content(tmp_path / "out") == runs.content(tmp_path / "wanted")


def test_a_source_that_changed_between_the_tries_gives_the_new_data(tmp_path: Path, source: Path) -> None:
    mine = tmp_path / "a.jsonl"
    mine.write_bytes(source.read_bytes())

    class Killed(BaseException):
        pass

    def stop(*_: object) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("packtool.output.OutputFolder.publish", stop)
        with pytest.raises(Killed):
            runs.run(mine, tmp_path / "out", max_length=64)
    changed = source.read_bytes().replace(b"[15, ", b"[16, ")
    assert len(changed) == mine.stat().st_size
    assert changed != mine.read_bytes()
    mine.write_bytes(changed)
    os.utime(mine, ns=(0, 0))
    runs.run(mine, tmp_path / "out", max_length=64)
    runs.run(mine, tmp_path / "wanted", max_length=64)
    assert runs.content(tmp_path / "out") == runs.content(tmp_path / "wanted")
