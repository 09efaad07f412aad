"""One run at a time on a folder: a lock file made with O_EXCL that says who holds it, kept fresh while it is held.

A lock is stale on the same host when its process is gone (process ids are told apart by boot id and start
time), and on another host when nobody touched it for two minutes.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from packtool.errors import Misuse

TOUCH_SECONDS = 10.0
STALE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a lock."""

    host: str
    boot_id: str
    pid: int
    started: str
    """The process's start time in clock ticks since boot, as the kernel prints it; "" where there is none."""

    @classmethod
    def of_this_process(cls) -> "Holder":
        return cls(socket.gethostname(), _boot_id(), os.getpid(), _start_time(os.getpid()))

    def is_running(self) -> bool:
        """Whether the process still runs; only to be asked on its own host."""
        if self.boot_id != _boot_id():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return _start_time(self.pid) == self.started


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file ``path`` for the length of the block.

    Raises:
        Misuse: another run holds it; the message names its process and host and says how to clear it.
    """
    holder = Holder.of_this_process()
    _acquire(path, holder)
    released = threading.Event()
    keeper = threading.Thread(target=_keep_fresh, args=(path, released), name="packtool-lock", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        released.set()
        keeper.join()
        # The folder, and the lock with it, may have been removed by the run itself when it finished.
        path.unlink(missing_ok=True)


def _acquire(path: Path, holder: Holder) -> None:
    while True:
        try:
            handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        except FileExistsError:
            _clear_if_stale(path, holder)
            continue
        with os.fdopen(handle, "w") as file:
            json.dump(asdict(holder), file)
        return


def _clear_if_stale(path: Path, holder: Holder) -> None:
    try:
        age = time.time() - path.stat().st_mtime
        other = Holder(**json.loads(path.read_text()))
    except FileNotFoundError:
        return  # released in between
    except (ValueError, TypeError):
        # Being written at this moment, or cut short by a crash: old enough, it is stale.
        if age < TOUCH_SECONDS:
            raise Misuse(f"{path.parent}: another run is starting here; try again in a moment") from None
        _remove_unchanged(path)
        return
    same_host = other.host == holder.host
    stale = not other.is_running() if same_host else age > STALE_SECONDS
    if not stale:
        raise Misuse(
            f"{path.parent}: in use by process {other.pid} on {other.host} "
            f"(locked; touched {max(age, 0):.0f} s ago). If that run is gone, remove {path}"
        )
    _remove_unchanged(path)


def _remove_unchanged(path: Path) -> None:
    # Renaming first makes sure that of two runs that find the same stale lock only one removes it.
    claimed = path.with_name(f"{path.name}.stale-{os.getpid()}")
    try:
        path.rename(claimed)
    except FileNotFoundError:
        return
    claimed.unlink()


def _keep_fresh(path: Path, released: threading.Event) -> None:
    while not released.wait(TOUCH_SECONDS):
        try:
            os.utime(path)
        except OSError:
            return


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _start_time(pid: int) -> str:
    try:
        # Field 22 of /proc/PID/stat; the command name before it may hold spaces and parentheses.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
