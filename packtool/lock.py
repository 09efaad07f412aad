"""One run at a time on a folder: a lock file made with O_EXCL that says who holds it, kept fresh while it is held.

A lock is stale on the same host when its process is gone (process ids are told apart by boot id and start
time), and elsewhere (another host, another container) when nobody touched it for two minutes.
"""

import fcntl
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
from packtool.files import naming

TOUCH_SECONDS = 10.0
STALE_SECONDS = 120.0
_POLL_SECONDS = 0.1


class InUse(Misuse):
    """Another run holds the lock."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a lock."""

    host: str
    boot_id: str
    pid: int
    started: str
    """The process's start time in clock ticks since boot, as the kernel prints it; "" where there is none."""
    pid_namespace: str
    """In which ``pid`` counts: containers may share a host's name."""

    @classmethod
    def of_this_process(cls) -> "Holder":
        """The holder that this process is."""
        pid = os.getpid()
        return cls(socket.gethostname(), _boot_id(), pid, _start_time(pid), _pid_namespace())

    def is_gone(self, here: "Holder", age: float) -> bool:
        """Whether the process runs no more, as far as ``here`` can tell, for a lock touched ``age`` seconds ago."""
        if self.host == here.host and self.boot_id != here.boot_id:
            return True
        if (self.host, self.pid_namespace) != (here.host, here.pid_namespace):
            return age > STALE_SECONDS
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return _start_time(self.pid) != self.started


class _Starting(InUse):
    """The lock file is being written, or was left half written by a process that was killed just then."""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file ``path`` for the length of the block; its folder is made if it is not there.

    Raises:
        InUse: another run holds it; the message names its process and host and says how to clear it.
    """
    here = Holder.of_this_process()
    while True:
        try:
            handle = _acquire(path, here)
            break
        except _Starting:
            time.sleep(_POLL_SECONDS)  # not for long: it is soon read, or old enough to be stale
    with _held(path, handle):
        yield


@contextmanager
def locked_in_turn(path: Path, patience: float) -> Iterator[bool]:
    """Hold the lock file ``path``, after whoever holds it now; but wait for ``patience`` seconds at most.

    Gives whether the lock is held: not, where the other one has it still.
    """
    here = Holder.of_this_process()
    deadline = time.monotonic() + patience
    while True:
        try:
            handle = _acquire(path, here)
            break
        except InUse:
            if time.monotonic() >= deadline:
                yield False
                return
            time.sleep(_POLL_SECONDS)
    with _held(path, handle):
        yield True


@contextmanager
def _held(path: Path, handle: int) -> Iterator[None]:
    released = threading.Event()
    keeper = threading.Thread(target=_keep_fresh, args=(handle, released), name="packtool-lock", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        # Ctrl-C may come at any moment, while this is done, too.
        try:
            released.set()
            keeper.join()
        finally:
            try:
                _remove_if_same(path, handle)
            finally:
                os.close(handle)


def _acquire(path: Path, here: Holder) -> int:
    while True:
        try:
            handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        except FileExistsError:
            _clear_if_stale(path, here)
        except FileNotFoundError:
            # The run before us has just finished, and took the empty folder away.
            path.parent.mkdir(parents=True, exist_ok=True)
        else:
            try:
                with naming(path):
                    os.write(handle, json.dumps(asdict(here)).encode())
            except BaseException:
                path.unlink(missing_ok=True)
                os.close(handle)
                raise
            return handle


def _clear_if_stale(path: Path, here: Holder) -> None:
    try:
        handle = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return  # released in between
    try:
        age = max(time.time() - os.fstat(handle).st_mtime, 0)
        try:
            other = Holder(**json.loads(os.pread(handle, 1 << 16, 0)))
            gone = other.is_gone(here, age)
        except (ValueError, TypeError, OverflowError):
            # Being written at this moment, or cut short by a crash: old enough, it is stale.
            if age < TOUCH_SECONDS:
                raise _Starting(f"{path.parent.parent}: another run is starting here; try again in a moment") from None
            gone = True
        if not gone:
            raise InUse(
                f"{path.parent.parent}: in use by process {other.pid} on {other.host} "
                f"(locked, touched {age:.0f} s ago); if that run is gone, remove {path}"
            )
        _remove_if_same(path, handle)
    finally:
        os.close(handle)


def _remove_if_same(path: Path, handle: int) -> None:
    """Remove the lock file that ``handle`` is open on, unless another one is at ``path`` by now.

    Two runs may find the same stale lock, and the slower one must not remove the new lock of the faster one. So
    only who holds the flock of this very file removes it; while it is open, no other file has its inode number.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError:
        pass  # a file system without flock: then only the comparison below guards
    try:
        if os.path.samestat(os.fstat(handle), path.stat()):
            path.unlink()
    except FileNotFoundError:
        pass


def _keep_fresh(handle: int, released: threading.Event) -> None:
    while not released.wait(TOUCH_SECONDS):
        try:
            os.utime(handle)
        except OSError:
            return


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _start_time(pid: int) -> str:
    try:
        # Fields 3 and 22 of /proc/PID/stat; the command name before them may hold spaces and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        # A killed process stays a zombie until its parent asks for it, which in a container may be never.
        return "" if fields[0] in "ZX" else fields[19]
    except (OSError, IndexError):
        return ""
