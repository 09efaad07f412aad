"""The temporary folder: gone after the block, whatever happened; what a killed process left goes at the next one."""

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

import pytest

from packtool.errors import PacktoolError
from packtool.scratch import scratch_folder


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("error", [None, KeyboardInterrupt("stop"), ValueError("bug"), OSError("elsewhere")])
def test_it_is_empty_and_goes_however_the_block_ends(place: Path, error: BaseException | None) -> None:
    expected = nullcontext() if error is None else pytest.raises(type(error), match=str(error))
    with expected, scratch_folder() as folder:
        assert names(folder) == []
        (folder / "deep").mkdir()
        (folder / "deep" / "file").write_bytes(b"x")
        if error is not None:
            raise error
    assert names(place) == []


def test_its_own_faults_are_one_line_that_says_what_to_do(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PacktoolError, match=r"No space left on device; set TMPDIR"), scratch_folder() as folder:
        raise OSError(28, "No space left on device", str(folder / "file"))
    assert names(place) == []
    monkeypatch.setattr(tempfile, "tempdir", str(place / "missing"))
    with pytest.raises(PacktoolError, match="no temporary folder can be made"), scratch_folder():
        pass


def test_what_a_killed_process_left_goes_and_what_is_in_use_stays(place: Path) -> None:
    script = (
        "import sys, tempfile, time; from packtool.scratch import scratch_folder\n"
        "with scratch_folder() as folder: print(folder, flush=True); time.sleep(100)"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(place), "PYTHONPATH": str(Path(__file__).parent.parent)},
        )
        for _ in range(2)
    ]
    folders = [Path(process.stdout.readline().decode().strip()) for process in processes if process.stdout]
    processes[0].send_signal(signal.SIGKILL)
    processes[0].wait()
    try:
        assert folders[0].exists()
        with scratch_folder():
            assert not folders[0].exists()
            assert folders[1].exists()
    finally:
        processes[1].kill()
        for process in processes:
            process.communicate()
    with scratch_folder():
        pass
    assert names(place) == []


def test_what_is_not_ours_is_never_removed(place: Path) -> None:
    (place / "target").mkdir()
    (place / "target" / "lock").write_bytes(b"{}")
    (place / "packtool-scratch-link").symlink_to(place / "target")
    (place / "packtool-scratch-file").write_bytes(b"x")
    (place / "packtool-scratch-new").mkdir()  # just made: it has no lock yet
    with scratch_folder():
        pass
    assert names(place) == ["packtool-scratch-file", "packtool-scratch-link", "packtool-scratch-new", "target"]
    assert names(place / "target") == ["lock"]


def test_two_at_a_time_have_folders_of_their_own() -> None:
    with scratch_folder() as one, scratch_folder() as two:
        assert one != two
        assert one.exists()
    assert not one.exists()
