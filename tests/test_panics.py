"""Panics of native libraries, and standard error while one may come."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tokenizers import Regex, normalizers

from packtool.panics import is_panic, unseen_panics
from tests import runs
from tests.tokenizer_builder import byte_level, save


class PanicException(BaseException):
    """As pyo3 names it."""


def test_what_others_write_meanwhile_is_written_afterwards(capfd: pytest.CaptureFixture[str]) -> None:
    with unseen_panics():
        os.write(2, b"meanwhile")
        assert capfd.readouterr().err == ""
    os.write(2, b", after")
    assert capfd.readouterr().err == "meanwhile, after"


def test_what_is_written_before_a_panic_is_lost(capfd: pytest.CaptureFixture[str]) -> None:
    def fail(error: BaseException) -> None:
        with unseen_panics():
            os.write(2, f"said before {type(error).__name__}".encode())
            raise error

    for error in (PanicException(), ValueError()):
        with pytest.raises(type(error)):
            fail(error)
    assert capfd.readouterr().err == "said before ValueError"


def open_files() -> int:
    return len([*Path("/dev/fd").iterdir()])


def test_blocks_in_blocks_and_in_threads_leave_standard_error_as_it_was(capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        for _ in range(200):
            with unseen_panics(), unseen_panics():
                os.write(2, b".")

    before = os.fstat(2).st_ino, open_files()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert capfd.readouterr().err == "." * 800
    assert (os.fstat(2).st_ino, open_files()) == before


def test_without_standard_error_nothing_is_made_one(capfd: pytest.CaptureFixture[str]) -> None:
    kept = os.dup(2)
    os.close(2)
    try:
        with unseen_panics():
            pass
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(2)
    finally:
        os.dup2(kept, 2)
        os.close(kept)
    assert capfd.readouterr().err == ""


def test_a_panic_is_known_by_its_name() -> None:
    assert is_panic(PanicException())
    assert not is_panic(KeyboardInterrupt())


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_panic_over_a_record_is_one_line_whatever_the_workers(tmp_path: Path, workers: str) -> None:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.Replace(Regex("(?=q)"), "b")
    files = save(tokenizer, tmp_path, {"eos_token": "</s>"})
    sources = [runs.write_jsonl(tmp_path / f"{text}.jsonl", [{"text": text}]) for text in ("a", "q")]
    command = [sys.executable, "-m", "packtool", "pack", *sources, "-o", tmp_path / "out", "-t", files.path]
    done = subprocess.run([*command, "--workers", workers], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {files.path}: cannot encode the texts: index out of bounds")
    assert done.stderr.count("\n") == 1
