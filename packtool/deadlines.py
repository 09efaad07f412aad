"""How much of the processor one call of a library may take: past that, its process ends.

For calls that nothing else can stop, such as a tokenizer's regular expression that tries every way to match. The system
keeps the time and ends the process, so a call that is in time costs two system calls and no thread.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

SECONDS = 600.0
"""Of processor time. Honest calls take seconds: a megabyte of text, or one record of 64 MiB."""
SIGNAL = getattr(signal, "SIGPROF", None)
"""What ends the process; None where the system has no such timer."""
_bounded = False


def bound_this_process() -> None:
    """Let ``in_time`` have its effect here: in workers, and where a command has the process for itself."""
    global _bounded
    _bounded = SIGNAL is not None


def over_time() -> str:
    """What there is to say of a process that has ended so."""
    return (
        f"one call of the tokenizer took more than {SECONDS:.0f} seconds of processor time, as a regular expression in "
        "its tokenizer.json may, or a text that is hard for it"
    )


@contextmanager
def in_time() -> Iterator[None]:
    """End the process where the block takes more than ``SECONDS`` of its processor time."""
    if not _bounded:
        yield
        return
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
