"""The output folder: what stands there, the unfinished run in it, and the order in which a dataset appears or goes.

At every moment a reader either fails or sees a whole dataset: the card, which lists the exact shards, is the
first to come and the last to go; the manifest is the last to come and the first to go.
"""

import errno
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packtool.errors import BadData, Misuse
from packtool.files import TEMPORARY_MARK, Unreadable, fsync_folder, read_json, write_atomic
from packtool.lock import locked
from packtool.manifest import (
    CARD_NAME,
    MANIFEST_NAME,
    PARTIAL_NAME,
    RUN_NAME,
    TOKENIZER_FOLDER,
    is_written_name,
    read_manifest,
)
from packtool.shards import SHARD_NAME

_OF_THE_SYSTEM = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE)
"""Errors that may pass, and say nothing against the name of the folder."""
_LOCK = "lock"
_COMMAND = "command.json"
_READY = "ready"
_REMOVE = "remove.json"
_STORE = "store"
_WORK = ("plan", "units.txt", "shards", _READY)


@dataclass(frozen=True, slots=True)
class OutputFolder:
    """An output folder and the names in it."""

    path: Path

    @property
    def partial(self) -> Path:
        """Where everything lives while it is made."""
        return self.path / PARTIAL_NAME

    @property
    def ready(self) -> Path:
        """Finished files that wait to be published, under their final names."""
        return self.partial / _READY

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Make the folder and hold its lock; a folder left empty goes again.

        Raises:
            Misuse: it cannot be made, or another run holds the lock.
        """
        existed = self.path.exists()
        try:
            self.partial.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if error.errno in _OF_THE_SYSTEM:
                raise
            raise Misuse(f"{self.path}: cannot be made: {error.strerror}") from None
        try:
            with locked(self.partial / _LOCK):
                try:
                    yield
                finally:
                    self._remove_unfinished()
        finally:
            for folder, ours in ((self.partial, True), (self.path, not existed)):
                if ours:
                    try:
                        folder.rmdir()
                    except OSError:
                        pass  # not empty: there is something worth keeping

    def is_finished(self) -> bool:
        """Whether a finished dataset stands here; not while it is being published.

        Raises:
            Misuse: what stands here is something that packtool did not make, by name.
        """
        if not self.path.exists():
            if self.path.is_symlink():
                raise Misuse(f"{self.path}: a link to nowhere")
            return False
        if not self.path.is_dir():
            raise Misuse(f"{self.path}: exists and is not a folder; choose another name")
        for path in (self.partial, *self.partial.glob("*"), *self.partial.glob(f"{_STORE}/*")):
            if path.is_symlink():  # packtool makes none, and would write through it
                raise Misuse(f"{path}: a link; remove it, or choose another folder")
        if self.is_publishing():
            return False
        names = sorted(entry.name for entry in self.path.iterdir() if entry.name != PARTIAL_NAME)
        if MANIFEST_NAME in names:
            return True
        if names and not self.is_begun():
            shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            raise Misuse(f"{self.path}: not empty ({shown}) and not a packed dataset; choose another folder")
        return False

    def is_begun(self) -> bool:
        """Whether a run was begun here and not ended, perhaps beside a finished dataset that it is to replace."""
        return (self.partial / _COMMAND).is_file()

    def unfinished_command(self) -> dict[str, Any]:
        """What the unfinished run here was asked to do; empty where that cannot be read."""
        try:
            values = read_json(self.partial / _COMMAND)
        except Unreadable:
            return {}
        return values if isinstance(values, dict) else {}

    def begin(self, command: dict[str, Any]) -> None:
        """Record what this run was asked to do; from now on the folder is an unfinished run."""
        self._remove_partial(_REMOVE)  # nothing is being published now, whatever somebody put there
        self.ready.mkdir(parents=True, exist_ok=True)
        write_atomic(self.partial / _COMMAND, json.dumps(command, sort_keys=True).encode())

    def release(self) -> None:
        """The run ended by itself, without a dataset: what it tokenized stays, but holds no other command up."""
        (self.partial / _COMMAND).unlink(missing_ok=True)
        self._remove_partial(*_WORK, _REMOVE, _COMMAND)

    def forget_unfinished(self) -> None:
        """Remove what an unfinished run left, but not the lock, nor anything packtool did not write."""
        # Publishing goes on after a stop as long as its mark is there, so the mark goes after what it needs.
        self._remove_partial(_STORE, *_WORK, _REMOVE, _COMMAND)

    def tidy(self, command: dict[str, Any]) -> None:
        """Remove what a run of ``command``, stopped after it had published the dataset here, had no time to.

        Raises:
            Misuse: another run is at work here.
        """
        if self.partial.is_dir():
            with self.opened():
                if not self.is_begun() or self.unfinished_command() == command:
                    self.forget_unfinished()

    def is_publishing(self) -> bool:
        """Whether an earlier run got as far as publishing, and was stopped there."""
        return self.is_begun() and (self.partial / _REMOVE).is_file()

    def publish(self) -> None:
        """Take away the dataset that stands here, if any, and move the finished files to their places.

        Stopped anywhere and called again, it goes on where it was.

        Raises:
            Misuse: a file that packtool did not write is in the way, or is to be moved or removed.
        """
        marker = self.partial / _REMOVE
        if not marker.is_file():
            old = written_names(self.path) if (self.path / MANIFEST_NAME).exists() else []
            _refuse_collisions(self.path, _names_below(self.ready), old)
            write_atomic(marker, json.dumps(old).encode())
        old = _names_to_remove(marker)
        new = _names_below(self.ready)
        if foreign := [name for name in new if not is_written_name(name)]:
            raise Misuse(f"{self.ready / foreign[0]}: not a file that packtool wrote; remove it")
        _refuse_linked_tokenizer(self.path)
        if old:
            _take_away(self.path, old)
            write_atomic(marker, b"[]")
        for name in publishing_order(new):
            target = self.path / name
            if target.parent != self.path:
                target.parent.mkdir(exist_ok=True)
                fsync_folder(self.path)
            (self.ready / name).replace(target)
            fsync_folder(target.parent)
        self.forget_unfinished()

    def _remove_unfinished(self) -> None:
        """Remove what tasks of this run, or of a run that was killed, had begun to write."""
        for depth in ("*", "*/*", "*/*/*"):
            for unfinished in self.partial.glob(f"{depth}{TEMPORARY_MARK}*"):
                _remove(unfinished)
        for left in self.partial.glob(f"{_STORE}/*/*.lock"):
            _remove(left)  # of a unit; nobody else is at work in this store

    def _remove_partial(self, *names: str) -> None:
        for name in names:
            for unfinished in self.partial.glob(f"{name}{TEMPORARY_MARK}*"):
                _remove(unfinished)
            _remove(self.partial / name)


def publishing_order(names: Sequence[str]) -> list[str]:
    """The card, then the shards, then the rest, the manifest last."""
    return sorted(names, key=lambda name: (("card", "shard", "rest", "manifest").index(_part(name)), name))


def removing_order(names: Sequence[str]) -> list[str]:
    """The manifest, then the shards, then the rest, the card last."""
    return sorted(names, key=lambda name: (("manifest", "shard", "rest", "card").index(_part(name)), name))


def _part(name: str) -> str:
    parts = {CARD_NAME: "card", MANIFEST_NAME: "manifest"}
    return parts.get(name, "shard" if SHARD_NAME.fullmatch(name) else "rest")


def written_names(folder: Path) -> list[str]:
    """The files of the packed dataset in ``folder`` that packtool wrote.

    Raises:
        Misuse: its manifest cannot be read, so nobody can tell.
    """
    try:
        manifest = read_manifest(folder)
    except BadData as error:
        raise Misuse(f"{error}; nothing is overwritten, choose another folder or remove this one") from None
    _refuse_linked_tokenizer(folder)
    names = [shard.name for shard in manifest.shards] + [file.name for file in manifest.files]
    if foreign := [name for name in names if not is_written_name(name)]:
        raise Misuse(
            f"{folder / MANIFEST_NAME}: lists {foreign[0]}, which packtool does not write; "
            "nothing is overwritten, choose another folder or remove this one"
        )
    return [*names, RUN_NAME, MANIFEST_NAME]


def _names_to_remove(marker: Path) -> list[str]:
    try:
        names = read_json(marker)
    except Unreadable as error:
        raise Misuse(f"{marker}: {error}; remove it, or choose another folder") from None
    if not isinstance(names, list) or not all(map(is_written_name, names)):
        raise Misuse(f"{marker}: not a list of the files of a dataset; remove it, or choose another folder")
    return names


def _refuse_linked_tokenizer(folder: Path) -> None:
    if (folder / TOKENIZER_FOLDER).is_symlink():
        raise Misuse(f"{folder / TOKENIZER_FOLDER}: a link, which packtool did not make; remove it first")


def _refuse_collisions(folder: Path, new: Sequence[str], old: Sequence[str]) -> None:
    for name in new:
        if name not in old and os.path.lexists(folder / name):
            raise Misuse(f"{folder / name}: in the way, and not written by packtool; move it, or choose another folder")


def _take_away(folder: Path, names: Sequence[str]) -> None:
    for name in removing_order(names):
        path = folder / name
        if os.path.lexists(path):
            path.unlink()
            fsync_folder(path.parent)
    try:
        (folder / TOKENIZER_FOLDER).rmdir()
    except OSError:
        pass  # not there, or holds a file that is not ours


def _names_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
