"""A temporary folder for the length of a block: it goes however the block ends, and at the next run at the latest.

Knows nothing of what is put there.
"""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from packtool.errors import Misuse, PacktoolError
from packtool.lock import locked, locked_in_turn

_PREFIX = "packtool-scratch-"
_LOCK = "lock"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give an empty folder in the folder for temporary files (``TMPDIR``).

    What processes of this user left there that were killed is removed first.

    Raises:
        PacktoolError: it cannot be made, or something in it cannot be written; the message says what to do.
    """
    try:
        remove_abandoned_scratch()
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    except OSError as error:
        raise PacktoolError(f"no temporary folder can be made: {error.strerror}; set TMPDIR to one") from None
    try:
        with locked(folder / _LOCK):
            work = folder / "work"
            work.mkdir()
            try:
                yield work
            finally:
                shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        if not str(error.filename or "").startswith(str(folder)):
            raise
        raise PacktoolError(f"{folder}: {error.strerror or error}; set TMPDIR to a place with more room") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned_scratch() -> None:
    """Remove what processes of this user left there that were killed; a scratch folder does so first."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            found = folder.lstat()
            ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
            if not ours or not (folder / _LOCK).exists():
                continue  # another user's, or just being made
            with locked_in_turn(folder / _LOCK, patience=0) as abandoned:
                if abandoned:
                    shutil.rmtree(folder, ignore_errors=True)
        except (OSError, Misuse):
            continue  # somebody else is removing it, or it is none of ours
