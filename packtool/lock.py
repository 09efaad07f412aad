"""One run at a time on a folder: a lock file made with O_EXCL that says who holds it, kept fresh while it is held.

A lock is stale on the same host when its process is gone (process ids are told apart by boot id and start
time), and elsewhere (another host, another container) when nobody touched it for two minutes.
"""

import errno
import fcntl
import json
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from packtool.errors import Misuse
from packtool.files import Unreadable, naming, parse_own

TOUCH_SECONDS = 10.0
STALE_SECONDS = 120.0
_POLL_SECONDS = 0.1
_AGAIN_SECONDS = 0.01
"""Before another try, where the lock was free but another run had it first."""


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
        Misuse: something else is in its place.
    """
    here = Holder.of_this_process()
    deadline = time.monotonic() + TOUCH_SECONDS + 1.0
    while True:
        try:
            handle = _acquire(path, here)
            break
        except _Starting as error:
            # Not for long: it is soon read, or old enough to be stale; unless its time is in the future.
            if time.monotonic() >= deadline:
                raise InUse(f"{path}: says nothing of who holds it; if no run is at work there, remove it") from error
            time.sleep(_POLL_SECONDS)
    with _held(path, handle):
        yield


@contextmanager
def locked_in_turn(path: Path, patience: float) -> Iterator[bool]:
    """Hold the lock file ``path``, after whoever holds it now; but wait for ``patience`` seconds at most.

    Gives whether the lock is held: not, where the other one has it still.

    Raises:
        Misuse: something else is in its place.
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
            time.sleep(_AGAIN_SECONDS)
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
        # Neither to where a link leads, nor waiting for somebody at the other end of a pipe.
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        time.sleep(_AGAIN_SECONDS)
        return  # released in between
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise _not_a_lock(path) from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise _not_a_lock(path)
        age = max(time.time() - os.fstat(handle).st_mtime, 0)
        try:
            with naming(path):
                raw = os.pread(handle, 1 << 16, 0)
            other = Holder(**parse_own(raw))
            gone = other.is_gone(here, age)
        except (Unreadable, ValueError, TypeError, OverflowError):
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


def _not_a_lock(path: Path) -> Misuse:
    return Misuse(f"{path}: not a plain file, so no lock of packtool's; remove it")


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
