"""One run at a time: who is refused, who takes over, and what is left."""

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from packtool import lock as lock_module
from packtool.errors import Misuse
from packtool.lock import Holder, locked, locked_in_turn
from tests import runs

HOLD = """
import sys, time
from pathlib import Path
from packtool.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the lock is, as in an output folder."""
    (tmp_path / "out" / ".partial").mkdir(parents=True)
    return tmp_path / "out" / ".partial" / "lock"


@pytest.fixture
def other(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def write(path: Path, holder: Holder, age: float = 0) -> None:
    """A lock file as ``holder`` would have left it."""
    path.write_text(json.dumps(asdict(holder)))
    os.utime(path, (time.time() - age, time.time() - age))


def test_a_lock_is_there_for_the_block_and_gone_after_it(path: Path) -> None:
    with locked(path):
        assert Holder(**json.loads(path.read_text())) == Holder.of_this_process()
    assert not path.exists()
    with pytest.raises(ValueError, match="inside"), locked(path):
        raise ValueError("inside")
    assert runs.names(path.parent) == []


def test_a_second_run_is_refused_at_once_naming_process_host_and_file(path: Path, other: subprocess.Popen[str]) -> None:
    expected = rf"^{path.parent.parent}: in use by process {other.pid} on {socket.gethostname()} .* remove {path}$"
    with pytest.raises(Misuse, match=expected), locked(path):
        pass
    assert path.exists(), "the other's lock stays"


def test_the_lock_of_a_killed_process_is_taken_over_even_while_it_is_a_zombie(
    path: Path, other: subprocess.Popen[str]
) -> None:
    other.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and Path(f"/proc/{other.pid}/stat").read_text().split()[2] != "Z":
        time.sleep(0.01)
    with locked(path):
        assert json.loads(path.read_text())["pid"] == os.getpid()
    assert runs.names(path.parent) == []


def test_a_process_that_has_the_number_of_a_dead_one_does_not_keep_its_lock(path: Path) -> None:
    write(path, replace(Holder.of_this_process(), started="1"))
    with locked(path):
        pass


def test_a_lock_from_before_the_last_boot_is_stale(path: Path) -> None:
    write(path, replace(Holder.of_this_process(), boot_id="another"))
    with locked(path):
        pass


@pytest.mark.parametrize("elsewhere", [{"host": "far"}, {"pid_namespace": "pid:[1]"}])
def test_a_lock_from_elsewhere_counts_until_nobody_has_touched_it_for_two_minutes(
    path: Path, elsewhere: dict[str, str]
) -> None:
    # The number of a process means nothing there; and 1 always runs here.
    holder = replace(Holder.of_this_process(), pid=1, **elsewhere)
    write(path, holder, age=100)
    with pytest.raises(Misuse, match=f"process 1 on {holder.host} "), locked(path):
        pass
    write(path, holder, age=130)
    with locked(path):
        pass


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"host": 1}', b"\xff"])
def test_a_lock_that_cannot_be_read_counts_while_it_is_new(
    path: Path, raw: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process may be about to write it; or was killed just then, and then the next run waits a moment."""
    path.write_bytes(raw)
    with locked_in_turn(path, patience=0) as held:
        assert not held
    monkeypatch.setattr(lock_module, "TOUCH_SECONDS", 0.5)
    began = time.time()
    with locked(path):
        assert time.time() - began > 0.3


def test_a_lock_that_cannot_be_read_and_comes_from_the_future_is_refused_after_a_while(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody's clock was wrong: waiting for it to grow old may take a day."""
    path.write_bytes(b"junk")
    os.utime(path, (time.time() + 86_400,) * 2)
    monkeypatch.setattr(lock_module, "TOUCH_SECONDS", 0.01)
    with pytest.raises(Misuse, match=f"^{path}: says nothing of who holds it; .* remove it$"), locked(path):
        pass


def test_a_lock_nested_too_deep_is_stale_like_any_that_says_nothing(path: Path) -> None:
    path.write_bytes(b"[" * 60_000)
    os.utime(path, (0, 0))
    with locked(path):
        pass


def make_link(path: Path) -> None:
    path.symlink_to("/nonexistent/x")


@pytest.mark.parametrize("make", [make_link, os.mkfifo, Path.mkdir])
def test_what_is_no_file_where_a_lock_should_be_is_refused_at_once(path: Path, make: Callable[[Path], None]) -> None:
    make(path)
    expected = f"^{path}: not a plain file, so no lock of packtool's; remove it$"
    with pytest.raises(Misuse, match=expected), locked(path):
        pass
    with pytest.raises(Misuse, match=expected), locked_in_turn(path, patience=60):
        pass


def test_a_held_lock_is_kept_fresh(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_module, "TOUCH_SECONDS", 0.01)
    with locked(path):
        os.utime(path, (0, 0))
        deadline = time.monotonic() + 20
        while path.stat().st_mtime == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert time.time() - path.stat().st_mtime < 60


def test_a_run_whose_lock_was_taken_over_does_not_remove_the_new_one(path: Path) -> None:
    with ExitStack() as slow:
        slow.enter_context(locked(path))
        path.unlink()
        fast = ExitStack()
        fast.enter_context(locked(path))
        slow.close()
        assert path.exists()
        fast.close()
    assert not path.exists()


def test_a_folder_that_vanishes_while_a_lock_is_taken_is_made_again(path: Path) -> None:
    path.parent.rmdir()
    path.parent.parent.rmdir()
    with locked(path):
        assert path.exists()


def _compete(path: Path, start: float, inside: Path) -> int:
    """Try for the lock until ``start`` is half a second past; how often two were inside together."""
    clashes = 0
    while time.time() < start + 0.5:
        try:
            with locked(path):
                try:
                    os.close(os.open(inside, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    clashes += 1
                else:
                    inside.unlink()
                # Leave it as a killed process does, for the others to find it stale.
                path.write_text(json.dumps(asdict(replace(Holder.of_this_process(), started="1"))))
        except Misuse:
            pass
    return clashes


def test_of_many_that_find_a_stale_lock_one_gets_it(path: Path, tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        start = time.time() + 1.0
        clashes = pool.starmap(_compete, [(path, start, tmp_path / "inside")] * 4)
    assert clashes == [0, 0, 0, 0]


def test_no_thread_is_left(path: Path) -> None:
    with locked(path):
        assert "packtool-lock" in {thread.name for thread in threading.enumerate()}
    assert "packtool-lock" not in {thread.name for thread in threading.enumerate()}
