"""Files that are whole or not there."""

import os
from pathlib import Path

import pytest

from packtool.files import (
    TEMPORARY_MARK,
    atomic_file,
    atomic_folder,
    sha256_of,
    temporary_name,
    write_atomic,
    write_synced,
)
from tests import runs


class Stopped(BaseException):
    """Like Ctrl-C."""


def write_and_fail(path: Path, error: type[BaseException]) -> None:
    with atomic_file(path) as file:
        file.write(b"new")
        raise error


def fill_and_fail(path: Path, error: type[BaseException]) -> None:
    with atomic_folder(path) as folder:
        (folder / "x").touch()
        raise error


def test_a_file_appears_when_the_block_ends_well(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with atomic_file(path) as file:
        file.write(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"
    assert runs.names(tmp_path) == ["a"]


def test_a_file_that_fails_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    for error in (ValueError, Stopped):
        with pytest.raises(error):
            write_and_fail(path, error)
        assert path.read_bytes() == b"old"
        assert runs.names(tmp_path) == ["a"]


def test_contents_are_on_the_disk_before_the_name_and_the_name_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def synced(handle: int) -> None:
        target = Path(f"/proc/self/fd/{handle}").readlink()
        done.append("sync folder" if target == tmp_path else f"sync {target.stat().st_size} bytes")
        fsync(handle)

    def renamed(*arguments: object, **options: object) -> None:
        done.append("rename")
        replace(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    write_atomic(tmp_path / "a", b"12345")
    assert done == ["sync 5 bytes", "rename", "sync folder"]


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a"
    with atomic_folder(path) as folder:
        write_synced(folder / "x", b"1", memoryview(b"2"))
        assert not path.exists()
        assert TEMPORARY_MARK in folder.name
    assert (path / "x").read_bytes() == b"12"
    assert runs.names(path.parent) == ["a"]


def test_a_folder_that_fails_is_gone(tmp_path: Path) -> None:
    for error in (ValueError, Stopped):
        with pytest.raises(error):
            fill_and_fail(tmp_path / "a", error)
        assert runs.names(tmp_path) == []


def test_of_two_that_make_the_same_folder_the_first_stays(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "a") as slow:
        (slow / "who").write_text("slow")
        with atomic_folder(tmp_path / "a") as fast:
            (fast / "who").write_text("fast")
    assert (tmp_path / "a" / "who").read_text() == "fast"
    assert runs.names(tmp_path) == ["a"]


def test_a_folder_that_cannot_be_renamed_for_another_reason_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a file")
    with pytest.raises(OSError, match="Not a directory"), atomic_folder(tmp_path / "a"):
        pass
    assert runs.names(tmp_path) == ["a"]


def test_temporary_names_stand_beside_and_are_never_the_same(tmp_path: Path) -> None:
    names = {temporary_name(tmp_path / "a") for _ in range(100)}
    assert len(names) == 100
    assert all(name.parent == tmp_path and name.name.startswith(f"a{TEMPORARY_MARK}") for name in names)


def test_sha256_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256_of(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
