"""Ctrl-C, and the signals that end a process, become one exception, which unwinds the run; two seconds later it ends.

For the console script alone: a program that calls packtool settles its signals itself.
"""

import os
import signal
import sys
import threading

from packtool.deadlines import SIGNAL, bound_this_process, over_time

TYPE_CHECKING = False
if TYPE_CHECKING:  # the console script imports this module before its signals are settled
    from types import FrameType
    from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SECONDS = 1.5
"""What a run has to tidy up; then it ends, whatever library it is in. What is left then, the next run removes."""


class Stopped(KeyboardInterrupt):
    """The process was told to stop, by the signal ``number``."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number

    @property
    def exit_code(self) -> int:
        """As shells tell it: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + self.number


def stop_on_signals(goes_on: bool) -> None:
    """Let the first of ``SIGNALS`` raise ``Stopped`` in the main thread, and pass over those after it.

    A signal that was ignored when the process began (``nohup``) stays ignored.
    """
    # Of a process that ends at once, multiprocessing's helper tidies up what is left, and would tell of it.
    sys.warnoptions.append("ignore:resource_tracker:UserWarning")
    heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    # The pipe is written to as a signal comes in, even while the main thread is inside a library.
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    try:
        speaks_on = os.dup(2)  # which a library may be kept from writing to, for a while
    except OSError:
        speaks_on = 2

    stopping = False

    def stop(number: int, frame: "FrameType | None") -> None:
        nonlocal stopping
        if stopping:
            return
        if _is_importing(frame):
            _send_again(number)  # half a module stays so: numpy, for one, cannot be imported once more
            return
        stopping = True
        raise Stopped(number)

    def not_raised(found: "sys.UnraisableHookArgs") -> None:
        nonlocal stopping
        if not isinstance(found.exc_value, Stopped):
            sys.__unraisablehook__(found)
            return
        # It came in a callback, out of which Python lets no exception; a moment later it is heard elsewhere.
        stopping = False
        _send_again(found.exc_value.number)

    sys.unraisablehook = not_raised
    for number in heard:
        signal.signal(number, stop)
    if SIGNAL is not None:
        signal.signal(SIGNAL, lambda *_: None)  # the thread below hears of it
        bound_this_process()
    threading.Thread(
        target=_end_in_time, args=(reader, speaks_on, frozenset(heard), goes_on), name="packtool-stop", daemon=True
    ).start()


def _is_importing(frame: "FrameType | None") -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _send_again(number: int) -> None:
    again = threading.Timer(0.01, os.kill, (os.getpid(), number))
    again.daemon = True
    again.start()


def goes_on(arguments: list[str]) -> bool:
    """Whether the command, run again, goes on where it was stopped."""
    return arguments[:1] == ["pack"]


def pass_over_signals() -> None:
    """Let a signal that comes while Python ends change neither what was said nor the exit code."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def stop_message(stopped: KeyboardInterrupt, goes_on: bool) -> tuple[str, int]:
    """What to say when a command was stopped that goes on where it was, or begins anew, and the exit code."""
    by = f" by {stopped}" if isinstance(stopped, Stopped) and stopped.number != signal.SIGINT else ""
    code = stopped.exit_code if isinstance(stopped, Stopped) else 130
    return f"stopped{by}{'; run the same command again to go on from here' if goes_on else ''}", code


def _end_in_time(reader: int, speaks_on: int, heard: frozenset[int], goes_on: bool) -> None:
    while (number := os.read(reader, 1)[0]) not in heard:
        if number == SIGNAL:
            _end(speaks_on, over_time(), 1)
    threading.Event().wait(SECONDS)
    _end(speaks_on, *stop_message(Stopped(number), goes_on))


def _end(speaks_on: int, message: str, code: int) -> "NoReturn":
    if (processes := sys.modules.get("multiprocessing.process")) is not None:
        for child in processes.active_children():
            child.kill()
    shown = "\x1b[?25h" if sys.stderr is not None and sys.stderr.isatty() else ""  # bars hide the cursor
    try:
        os.write(speaks_on, f"{shown}error: {message}\n".encode())
    except OSError:
        pass
    os._exit(code)
