"""Work for the tests of the executor: functions that a spawned process can import."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from packtool import deadlines
from packtool.errors import BadData


def square(number: int) -> int:
    """The later the task, the sooner it is done."""
    time.sleep(max(0.0, 0.02 - number / 1000))
    return number * number


def fail_at(task: tuple[int, float]) -> int:
    """Negative tasks fail, after a while."""
    number, seconds = task
    time.sleep(seconds)
    if number < 0:
        raise BadData(f"task {number}")
    return number


def die(number: int) -> int:
    """As the kernel's memory killer ends a process."""
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def where(_: int) -> tuple[int, str, bool]:
    """The process, what its __main__ is, and whether it hears Ctrl-C."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    return os.getpid(), str(getattr(sys.modules["__main__"], "__file__", None)), ignored


def setting(name: str) -> str | None:
    """A variable of the environment."""
    return os.environ.get(name)


def sleep_long(folder: str) -> None:
    """Say which process this is, and sleep."""
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(120)


def payload(task: Any) -> int:
    """How large a task was."""
    return len(task)


def be_late(seconds: float) -> float:
    """A call of a library that takes so long, where half a second of the processor is too much."""
    deadlines.SECONDS = 0.5
    with deadlines.in_time():
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass
    return seconds
