"""Runs that share a cache: nothing is made twice or taken from a live run; what is old or damaged is not used."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from packtool import token_store
from packtool.run import pack
from packtool.token_store import TokenStore
from tests import runs

ROOT = Path(__file__).parent.parent
DIGEST = "ab" * 32


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Documents of tokens."""
    records = [{"input_ids": [1 + (n * 7 + i) % 499 for i in range(2 + n * n % 61)]} for n in range(200)]
    return runs.write_jsonl(tmp_path / "a.jsonl", records)


HOLD = """
import sys, time
from pathlib import Path
from packtool.token_store import TokenStore
store = TokenStore(Path(sys.argv[1]), "recipe")
with store.reserved("ab" * 32), store.writing("ab" * 32, "none"):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def maker(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that is making the unit of ``DIGEST``."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "cache")], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def names(cache: Path) -> list[str]:
    """What lies in the one recipe of a cache."""
    return runs.names(cache / "recipe")


def test_what_a_live_run_is_making_stays_and_what_a_killed_one_left_goes(
    tmp_path: Path, maker: subprocess.Popen[str]
) -> None:
    store = TokenStore(tmp_path / "cache", "other")
    before = names(tmp_path / "cache")
    assert len(before) == 2
    store.remove_abandoned()
    assert names(tmp_path / "cache") == before
    maker.kill()
    maker.wait()
    store.remove_abandoned()
    assert names(tmp_path / "cache") == []


def test_what_nobody_has_a_lock_for_goes_once_it_is_old(tmp_path: Path) -> None:
    store = TokenStore(tmp_path / "cache", "recipe")
    unfinished = tmp_path / "cache" / "recipe" / f"{DIGEST[:40]}-none.tmp-1-abcd"
    unfinished.mkdir(parents=True)
    (unfinished / "ids.bin").touch()
    store.remove_abandoned()
    assert unfinished.exists()
    for path in (unfinished / "ids.bin", unfinished):
        os.utime(path, (0, 0))
    store.remove_abandoned()
    assert not unfinished.exists()


def test_a_unit_that_another_run_is_making_is_waited_for_but_not_without_end(
    tmp_path: Path, maker: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TokenStore(tmp_path / "cache", "recipe")
    monkeypatch.setattr(token_store, "_PATIENCE_SECONDS", 0.3)
    began = time.monotonic()
    with store.reserved(DIGEST):
        assert time.monotonic() - began >= 0.3
    monkeypatch.setattr(token_store, "_PATIENCE_SECONDS", 60.0)
    threading.Timer(0.3, maker.kill).start()
    with store.reserved(DIGEST):
        assert maker.poll() is not None or time.monotonic() - began > 0.5


def test_runs_at_the_same_time_make_each_unit_once(tmp_path: Path, source: Path) -> None:
    script = f"""
import sys
from pathlib import Path
import pytest
from packtool import cli
from tests import runs
runs.small_units(pytest.MonkeyPatch(), 1500)
sys.exit(cli._exit_code(["pack", {str(source)!r}, "-t", {str(runs.TOKENIZER)!r}, "--workers", "1",
    "--cache-dir", {str(tmp_path / "cache")!r}, "-q", "-L", sys.argv[1], "-o", {str(tmp_path)!r} + "/" + sys.argv[1]]))
"""
    lengths = ("64", "128", "256")
    processes = [subprocess.Popen([sys.executable, "-c", script, length], cwd=ROOT) for length in lengths]
    assert [process.wait(120) for process in processes] == [0, 0, 0]
    with pytest.MonkeyPatch.context() as patch:
        runs.small_units(patch, 1500)
        for length in lengths:
            runs.run(source, tmp_path / "wanted" / length, max_length=int(length))
            assert runs.content(tmp_path / length) == runs.content(tmp_path / "wanted" / length)
    units = len(list((tmp_path / "cache").glob("*/*/unit.json")))
    made = 0
    for length in lengths:
        made += units - json.loads((tmp_path / length / "run.json").read_bytes())["reused_units"]
    assert made == units > 10
    left = [path.name for path in (tmp_path / "cache").glob("*/*")]
    assert not [name for name in left if ".tmp-" in name or name.endswith(".lock")]


def test_another_strategy_length_order_or_layout_encodes_nothing(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = {"cache_dir": tmp_path / "cache"}
    runs.run(source, tmp_path / "first", max_length=64, **cache)
    monkeypatch.setattr("packtool.tokenizing._workshop", None)  # whoever encodes fails
    others = [
        {"max_length": 32},
        {"strategy": "wrapped"},
        {"strategy": "bfd", "overlong": "truncate"},
        {"seed": 5},
        {"shuffle": False},
        {"group_tokens": 500},
        {"shards": 2, "max_length": 64},
        {"pad": True},
        {"max_segments": 2},
        {"workers": 2},
    ]
    for number, options in enumerate(others):
        heard = runs.Heard([])
        pack(runs.config(source, tmp_path / str(number), **cache, **options), heard)
        assert "1 of 1 parts of the input were tokenized before" in heard.notices


def test_a_source_changed_in_place_with_its_size_and_time_kept_is_encoded_anew(tmp_path: Path, source: Path) -> None:
    cache = {"cache_dir": tmp_path / "cache", "max_length": 64}
    runs.run(source, tmp_path / "first", **cache)
    stat = source.stat()
    changed = source.read_bytes().replace(b"[15, ", b"[16, ")
    with source.open("rb+") as file:
        file.write(changed)
    os.utime(source, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (source.stat().st_size, source.stat().st_mtime_ns) == (stat.st_size, stat.st_mtime_ns)
    runs.run(source, tmp_path / "second", **cache)
    runs.run(source, tmp_path / "wanted", max_length=64)
    assert runs.content(tmp_path / "second") == runs.content(tmp_path / "wanted")
    assert runs.content(tmp_path / "second") != runs.content(tmp_path / "first")


@pytest.mark.parametrize("damage", ["cut", "flipped", "link", "file", "empty", "missing"])
def test_a_damaged_entry_is_made_anew(tmp_path: Path, source: Path, damage: str) -> None:
    cache = {"cache_dir": tmp_path / "cache", "max_length": 64}
    runs.run(source, tmp_path / "first", **cache)
    (unit,) = (path for path in (tmp_path / "cache").glob("*/*"))
    (unit_file,) = unit.glob("unit.json")
    if damage == "cut":
        unit_file.write_bytes(unit_file.read_bytes()[:-5])
    elif damage == "flipped":
        largest = max(unit.iterdir(), key=lambda path: path.stat().st_size)
        raw = bytearray(largest.read_bytes())
        raw[len(raw) // 2] ^= 1
        largest.write_bytes(raw)
    elif damage == "missing":
        unit_file.unlink()
    else:
        elsewhere = Path(shutil.copytree(unit, tmp_path / "elsewhere"))
        shutil.rmtree(unit)
        if damage == "link":
            unit.symlink_to(elsewhere)
        elif damage == "file":
            unit.touch()
        else:
            unit.mkdir()
    runs.run(source, tmp_path / "second", **cache)
    assert runs.content(tmp_path / "second") == runs.content(tmp_path / "first")
    assert not unit.is_symlink()
    heard = runs.Heard([])
    pack(runs.config(source, tmp_path / "third", **cache), heard)
    assert "1 of 1 parts of the input were tokenized before" in heard.notices
    if damage == "link":
        assert runs.names(tmp_path / "elsewhere"), "what the link led to was not touched"
