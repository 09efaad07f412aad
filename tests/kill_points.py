"""Runs that are killed just before the k-th change to the file system, for every k. Run as a script, for a clean fork.

Each run is a forked child of this process, which has no threads; the child kills itself with SIGKILL, so nothing of
it is cleaned up. Prints, for each k, what the run then ended with and whether the folder equals an undisturbed one.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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
        killed = _forked(lambda made=made, point=point: _pack_until(made, point))
        if not os.WIFSIGNALED(killed):
            print(json.dumps({"point": point, "ended": True}))
            return
        seen = _visible(output)
        ended = _forked(lambda made=made: pack(made))
        equal = runs.content(output) == wanted
        left = sorted(str(path.relative_to(output)) for path in output.rglob("*") if ".tmp-" in path.name)
        partial = (output / ".partial").exists()
        print(json.dumps({"point": point, "rc": ended, "equal": equal, "left": left, "partial": partial, "seen": seen}))


def _points(job: dict[str, Any]) -> Iterator[int]:
    point = job["first"]
    while True:
        yield point
        point += job["step"]


def _pack_until(made: Any, point: int) -> None:
    left = point

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def changing(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return change(*arguments, **options)

        return changing

    for name in CHANGES:
        setattr(os, name, counted(getattr(os, name)))
    pack(made)


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
