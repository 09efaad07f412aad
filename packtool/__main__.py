"""The console script, and ``python -m packtool``: settles what signals mean, and only then imports the rest."""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes as long to import as Python takes to start
    from typing import NoReturn


def main() -> "NoReturn":
    """Run the command that ``sys.argv`` holds, and exit with its code."""
    _leave_on_signals()
    from packtool.stopping import goes_on, pass_over_signals, stop_message, stop_on_signals

    arguments = sys.argv[1:]
    try:
        stop_on_signals(goes_on(arguments))
        from packtool.cli import run

        code = run(arguments)
    except KeyboardInterrupt as stopped:  # before there was anybody to tell it, or while another end was told
        pass_over_signals()
        message, code = stop_message(stopped, goes_on(arguments))
        try:
            os.write(2, f"error: {message}\n".encode())
        except OSError:
            pass  # nobody is there to be told
    sys.exit(code)


def _leave_on_signals() -> None:
    """End at once, for as long as nothing was done that could be told or tidied up."""
    # The part of signal that is there already; signal itself takes some milliseconds.
    import _signal  # type: ignore[import-not-found]

    for number in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP):
        if _signal.getsignal(number) != _signal.SIG_IGN:
            _signal.signal(number, lambda number, _: os._exit(128 + number))


if __name__ == "__main__":
    main()
