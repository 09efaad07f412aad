"""Runs that are killed at the k-th change to the file system, for every k. Run as a script, for a clean fork.

A change is a call of ``CHANGES``, before which the run is killed; or a write to a file, in the midst of which it is
killed, with one half of the bytes written; or a file just opened to be written, or a row group of a shard just written.

Each run is a forked child of this process, which has no threads; the child kills itself with SIGKILL, so nothing of
it is cleaned up. Prints, for each k, what the run then ended with and whether the folder equals an undisturbed one.
"""

import io
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import packtool.verification  # noqa: F401 - everything a child needs is loaded before it is forked
from packtool.run import pack
from tests import runs

CHANGES = ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir")


def main(job: dict[str, Any]) -> None:
    """Kill at every point from ``first`` in steps of ``step``, each time in a copy of what ``seed`` holds."""
    folder = Path(job["folder"])
    wanted = runs.content(Path(job["wanted"]))
    for point in _points(job):
        output = folder / str(point)
        if job["seed"]:
            _copy(Path(job["seed"]), output)
        made = runs.config(Path(job["source"]), output, **job["options"])
        told = folder / f"{point}.kind"
        killed = _forked(lambda made=made, point=point, told=told: _pack_until(made, point, told))
        if not os.WIFSIGNALED(killed):
            print(json.dumps({"point": point, "ended": True}))
            return
        seen = _visible(output)
        ended = _forked(lambda made=made: pack(made))
        equal = runs.content(output) == wanted
        left = sorted(str(path.relative_to(output)) for path in output.rglob("*") if ".tmp-" in path.name)
        partial = (output / ".partial").exists()
        print(
            json.dumps(
                {
                    "point": point,
                    "rc": ended,
                    "equal": equal,
                    "left": left,
                    "partial": partial,
                    "seen": seen,
                    "kind": told.read_text(),
                }
            )
        )


def _points(job: dict[str, Any]) -> Iterator[int]:
    point = job["first"]
    while True:
        yield point
        point += job["step"]


def _pack_until(made: Any, point: int, told: Path) -> None:
    left = point
    open_file, kill_me = io.open, os.kill
    raw_open, raw_write = os.open, os.write

    def is_now(kind: str, path: object) -> bool:
        nonlocal left
        left -= 1
        if left != -1:
            return False
        handle = raw_open(told, os.O_CREAT | os.O_WRONLY)
        raw_write(handle, f"{kind} {_kind_of_file(path)}".encode())
        return True

    def die() -> None:
        kill_me(os.getpid(), signal.SIGKILL)

    def counted(name: str, change: Callable[..., Any]) -> Callable[..., Any]:
        def changing(*arguments: Any, **options: Any) -> Any:
            path = arguments[0]
            if isinstance(path, int):
                path = Path(f"/proc/self/fd/{path}").readlink()
            if is_now(name, path):
                die()
            return change(*arguments, **options)

        return changing

    def opening(path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        file = open_file(path, mode, *arguments, **options)
        if "w" not in mode and "a" not in mode:
            return file
        if is_now("open", path):
            die()
        return _Halved(file, lambda: is_now("write", path), die)

    def row_group(writer: Any, *arguments: Any, **options: Any) -> None:
        write_table(writer, *arguments, **options)
        if is_now("row group", writer.where):
            die()

    for name in CHANGES:
        setattr(os, name, counted(name, getattr(os, name)))
    os.write = counted("write", os.write)  # type: ignore[assignment]
    io.open = opening  # type: ignore[assignment]
    write_table = pq.ParquetWriter.write_table
    pq.ParquetWriter.write_table = row_group
    pack(made)


class _Halved:
    """A file whose owner may die in the midst of a write."""

    def __init__(self, file: Any, is_now: Callable[[], bool], die: Callable[[], None]) -> None:
        self._file, self._is_now, self._die = file, is_now, die

    def write(self, data: Any) -> int:
        if self._is_now():
            raw = memoryview(data).cast("B")
            self._file.write(raw[: len(raw) // 2])
            self._file.flush()
            self._die()
        return self._file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> "_Halved":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _kind_of_file(path: object) -> str:
    """The name of a file without what differs from run to run."""
    parts = str(path).split("/.partial", 1)
    name = f".partial{parts[1]}" if len(parts) > 1 else Path(str(path)).name
    name = re.sub(r"\.tmp-[0-9a-f-]+", ".tmp", name)
    return re.sub(r"[0-9a-f]{40}", "*", re.sub(r"[0-9]{5,6}", "*", name))


def _forked(work: Callable[[], Any]) -> int:
    child = os.fork()
    if not child:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


def _visible(output: Path) -> list[str]:
    return sorted(path.name for path in output.glob("*")) if output.is_dir() else []


def _copy(seed: Path, output: Path) -> None:
    for name, raw in runs.content(seed, without_run=False).items():
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        (output / name).write_bytes(raw)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
