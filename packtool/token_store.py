"""The token store: one folder a unit of input, with its ids apart from what planning reads.

A unit's place follows from its content and from how it was made into tokens, never from where it came from:
a unit that is there needs no encoding again, whichever run or source it belongs to. Each encoder has places of
its own, so that one of them can be found to be wrong.

    ROOT/RECIPE/CONTENT-ENCODER/ids.bin         int32, all documents end to end
                                documents.bin   checksums, rows, lengths, run counts, runs
                                unit.json       counts, the records that did not become documents, the sha256 of all
                CONTENT.lock                    who is making that unit now
    ROOT/RECIPE/distrusted-ENCODER              what that encoder did wrong; none of its units is to be used
"""

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packtool.encoding import EncodedDocuments, Int32s
from packtool.errors import PacktoolError
from packtool.files import (
    TEMPORARY_MARK,
    Missing,
    Unreadable,
    atomic_folder,
    naming,
    read_json,
    read_own,
    sha256_of,
    write_atomic,
    write_synced,
)
from packtool.hashing import U64, token_checksums
from packtool.lock import locked_in_turn

STORE_FORMAT = 4
_IDS = "ids.bin"
_DOCUMENTS = "documents.bin"
_UNIT = "unit.json"
_LOCK = ".lock"
_PATIENCE_SECONDS = 60.0
"""For another run to make a unit; the slowest tokenizer takes some seconds."""
_ABANDONED_SECONDS = 3600.0
_TOLD_BYTES = 1 << 20
_TOLD_SHOWN = 500
"""Characters of why an encoder is not trusted."""
Int64s = NDArray[np.int64]

_INT32 = np.dtype("<i4")
_UINT64 = np.dtype("<u8")


@dataclass(frozen=True, slots=True)
class UnitReject:
    """A record of a unit that did not become a document."""

    row: int
    """Zero-based, in the unit."""
    record: int
    """Zero-based, blank rows not counted, in the unit."""
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class UnitSummary:
    """What the run needs to know of a unit once it is stored."""

    digest: str
    """Of the unit's content."""
    bytes: int
    """Of the unit's content, as read."""
    rows: int
    records: int
    documents: int
    runs: int
    tokens: int
    encoder: str
    rejects: tuple[UnitReject, ...]
    """In row order."""
    notes: dict[str, int]
    """How many records there is something to say of, by what that is."""


@dataclass(frozen=True, slots=True)
class UnitDocuments:
    """What planning reads of a unit's documents; each array has one entry a document, runs apart."""

    rows: Int32s
    """int32 [n], zero-based in the unit."""
    lengths: Int32s
    checksums: U64
    """uint64 [n], h of each document (see hashing.token_checksums)."""
    run_counts: Int32s
    runs: Int32s
    """int32 [R, 2], the first token of each trained run and one past its last, counted in its document."""


class TokenStore:
    """All units made by one recipe, under one folder."""

    def __init__(self, root: Path, recipe: str) -> None:
        """Use ``root``/``recipe``; ``recipe`` is a name that stands for everything that changes tokens."""
        self.folder = root / recipe

    def unit_folder(self, digest: str, encoder: str) -> Path:
        """Where the unit of that content, made by that encoder, is or would be."""
        return self.folder / f"{digest[:40]}-{_in_a_name(encoder)}"

    def distrust(self, encoder: str, told: str) -> None:
        """Put down, for this run and all later ones, that an encoder is not to be used with this recipe, and why."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomic(self._distrusted(encoder), told.encode())

    def distrusted(self, encoder: str) -> str | None:
        """Why an encoder is not to be used; None where nothing is put down against it."""
        try:
            told = read_own(self._distrusted(encoder), _TOLD_BYTES).decode(errors="replace")
            return " ".join(told.split())[:_TOLD_SHOWN]
        except Missing:
            return None
        except Unreadable as error:
            return f"{self._distrusted(encoder)}: {error}"  # nobody can say that it is to be trusted

    def _distrusted(self, encoder: str) -> Path:
        return self.folder / f"distrusted-{_in_a_name(encoder)}"

    def find(self, digest: str, encoders: Sequence[str]) -> UnitSummary | None:
        """The stored unit of that content; None where there is none, or any byte of it is not as it was written.

        Reads the unit's files to their end: a disk or a copy that lost a bit must not become a dataset.

        Args:
            digest: of the content.
            encoders: those whose units may be used; the first one that has it counts.
        """
        return next((found for encoder in encoders if (found := self._find(digest, encoder)) is not None), None)

    def _find(self, digest: str, encoder: str) -> UnitSummary | None:
        folder = self.unit_folder(digest, encoder)
        if folder.is_symlink():
            return None  # whatever it is, packtool did not make it
        try:
            summary, hashes = _read_summary(folder / _UNIT)
            whole = (
                summary.digest == digest
                and summary.encoder == encoder
                and _is_sound(summary)
                and (folder / _IDS).stat().st_size == 4 * summary.tokens
                and (folder / _DOCUMENTS).stat().st_size == 20 * summary.documents + 8 * summary.runs
                and _agree(summary, self.documents(summary))
                and all(sha256_of(folder / name) == hashes[name] for name in (_IDS, _DOCUMENTS))
            )
        except _UNREADABLE:
            return None
        return summary if whole else None

    def rejects(self, unit: UnitSummary) -> tuple[UnitReject, ...]:
        """The records of a unit, which this run has found or made, that did not become documents.

        Raises:
            PacktoolError: it is not there any more, or was changed.
        """
        folder = self._folder_of(unit)
        try:
            summary, _ = _read_summary(folder / _UNIT)
            if summary.digest == unit.digest and _is_sound(summary):
                return summary.rejects
        except _UNREADABLE:
            pass
        raise store_changed(folder)

    @contextmanager
    def reserved(self, digest: str) -> Iterator[None]:
        """Keep other runs, which may share the store, from making the unit of that content in the block, too.

        Waits for a run that is making it; whoever comes next finds it there. Should the other one hang, it is
        made twice, which does no harm.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked_in_turn(self.folder / f"{digest[:40]}{_LOCK}", _PATIENCE_SECONDS):
            yield

    def remove_abandoned(self) -> None:
        """Remove what runs that are gone had begun to write, by this recipe or another one under the same root."""
        root = self.folder.parent
        for lock in root.glob(f"*/*{_LOCK}"):
            with locked_in_turn(lock, patience=0) as abandoned:
                if abandoned:
                    for unfinished in lock.parent.glob(f"{lock.stem}*{TEMPORARY_MARK}*"):
                        shutil.rmtree(unfinished, ignore_errors=True)
        for unfinished in root.glob(f"*/*{TEMPORARY_MARK}*"):
            # Without a lock only where its maker had lost patience with another one.
            if not _is_recent(unfinished):
                shutil.rmtree(unfinished, ignore_errors=True)

    @contextmanager
    def writing(self, digest: str, encoder: str) -> Iterator["UnitWriter"]:
        """Fill the unit of that content; it is there, whole, when the block ends well.

        What was found there before and is not whole goes; what is whole by the end of the block stays.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        place = self.unit_folder(digest, encoder)
        if self._find(digest, encoder) is None:
            _clear(place)
        with naming(place), atomic_folder(place) as folder:
            writer = UnitWriter(folder, digest, encoder)
            try:
                yield writer
            finally:
                writer.close()

    def documents(self, summary: UnitSummary) -> UnitDocuments:
        """Read what planning needs of a unit; the ids stay on disk."""
        n, runs = summary.documents, summary.runs
        path = self.documents_path(summary)
        with naming(path):
            raw = path.read_bytes()
        if len(raw) != 20 * n + 8 * runs:
            raise store_changed(path)

        def int32(offset: int, count: int) -> Int32s:
            return np.frombuffer(raw, _INT32, count, offset)

        return UnitDocuments(
            checksums=np.frombuffer(raw, _UINT64, n),
            rows=int32(8 * n, n),
            lengths=int32(12 * n, n),
            run_counts=int32(16 * n, n),
            runs=int32(20 * n, 2 * runs).reshape(-1, 2),
        )

    def checksums(self, unit: UnitSummary, starts: Int64s, lengths: Int32s, offsets: Int32s) -> U64:
        """h of stretches of a unit's documents.

        Args:
            unit: which one.
            starts: int64 [S], the first token of each stretch, counted in the unit.
            lengths: int32 [S].
            offsets: int32 [S], the same token counted in its document.
        """
        path = self.ids_path(unit)
        stretches: list[bytes] = []
        with naming(path), path.open("rb") as file:
            for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
                file.seek(4 * start)
                stretches.append(file.read(4 * length))
                if len(stretches[-1]) != 4 * length:
                    raise store_changed(path)
        return token_checksums(np.frombuffer(b"".join(stretches), _INT32), lengths, offsets)

    def runs_offset(self, summary: UnitSummary) -> int:
        """Where the runs begin in a unit's file of documents, in bytes."""
        return 20 * summary.documents

    def documents_path(self, unit: UnitSummary) -> Path:
        """The file of what is not ids."""
        return self._folder_of(unit) / _DOCUMENTS

    def ids_path(self, unit: UnitSummary) -> Path:
        """The file of a unit's ids."""
        return self._folder_of(unit) / _IDS

    def _folder_of(self, unit: UnitSummary) -> Path:
        return self.unit_folder(unit.digest, unit.encoder)


class UnitWriter:
    """Takes the documents of one unit, batch by batch."""

    def __init__(self, folder: Path, digest: str, encoder: str) -> None:
        self._folder = folder
        self._digest = digest
        self._encoder = encoder
        self._ids = (folder / _IDS).open("wb")
        self._ids_hash = hashlib.sha256()
        self._rows: list[Int32s] = []
        self._batches: list[tuple[U64, Int32s, Int32s, Int32s]] = []
        self._tokens = 0

    def add(self, rows: Sequence[int] | Int64s, documents: EncodedDocuments) -> None:
        """Append documents; ``rows`` are theirs, rising."""
        checksums = token_checksums(documents.ids, documents.lengths)
        raw = _raw(documents.ids, _INT32)
        self._ids.write(raw)
        self._ids_hash.update(raw)
        self._tokens += len(documents.ids)
        self._rows.append(np.array(rows, dtype=np.int32))
        runs = np.stack([documents.run_starts, documents.run_stops], axis=1)
        self._batches.append((checksums, documents.lengths, documents.run_counts, runs))

    def finish(
        self,
        *,
        bytes: int,
        rows: int,
        records: int,
        rejects: Sequence[UnitReject],
        notes: Mapping[str, int] | None = None,
    ) -> UnitSummary:
        """Write what was gathered and say what the unit holds."""
        self._ids.flush()
        self.close()
        checksums, lengths, run_counts, runs = (
            _joined([batch[part] for batch in self._batches], _UINT64 if part == 0 else _INT32) for part in range(4)
        )
        arrays = (checksums, _joined(self._rows, _INT32), lengths, run_counts, runs)
        parts = [_raw(array, array.dtype) for array in arrays]
        write_synced(self._folder / _DOCUMENTS, *parts)
        summary = UnitSummary(
            digest=self._digest,
            bytes=bytes,
            rows=rows,
            records=records,
            documents=len(lengths),
            runs=len(runs),
            tokens=self._tokens,
            encoder=self._encoder,
            rejects=tuple(rejects),
            notes=dict(sorted((notes or {}).items())),
        )
        documents_hash = hashlib.sha256()
        for part in parts:
            documents_hash.update(part)
        unit = asdict(summary)
        hashes = {
            _IDS: self._ids_hash.hexdigest(),
            _DOCUMENTS: documents_hash.hexdigest(),
            _UNIT: _summary_hash(unit),
        }
        write_synced(self._folder / _UNIT, json.dumps({"unit": unit, "sha256": hashes}).encode())
        return summary

    def close(self) -> None:
        """Close the file of ids, synced; may be called twice."""
        if not self._ids.closed:
            os.fsync(self._ids.fileno())
            self._ids.close()


def _in_a_name(encoder: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", encoder)


def store_changed(path: Path) -> PacktoolError:
    """The error of a stored unit that is not what it was when the run found or made it."""
    return PacktoolError(f"{path}: the token store was changed or cut short; run again")


_UNREADABLE = (Unreadable, OSError, ValueError, TypeError, KeyError, AttributeError)
"""What reading a file of a unit may raise, where it is not there or not what was written."""


_UNIT_BYTES = 1 << 30
"""A unit's summary is smaller, even where each of the 4 million shortest lines of a unit is refused."""


def _clear(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place, ignore_errors=True)
    else:
        place.unlink(missing_ok=True)


def _is_recent(unfinished: Path) -> bool:
    try:
        changes = [unfinished.stat().st_mtime, *(path.stat().st_mtime for path in unfinished.iterdir())]
    except OSError:
        return True  # it has just been finished
    return time.time() - max(changes) < _ABANDONED_SECONDS


def _read_summary(path: Path) -> tuple[UnitSummary, dict[str, str]]:
    """What the file says, and the sha256 of each file; raises one of ``_UNREADABLE``."""
    stored = read_json(path, _UNIT_BYTES)
    values, hashes = stored["unit"], stored["sha256"]
    if _summary_hash(values) != hashes[_UNIT]:
        raise ValueError("it does not have its own sha256")
    rejects = tuple(UnitReject(**reject) for reject in values.pop("rejects"))
    return UnitSummary(**values, rejects=rejects), hashes


def _summary_hash(unit: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(unit).encode()).hexdigest()


def _is_sound(summary: UnitSummary) -> bool:
    counts = [summary.bytes, summary.rows, summary.records, summary.documents, summary.runs, summary.tokens]
    counts += summary.notes.values()
    places = [place for reject in summary.rejects for place in (reject.row, reject.record)]
    texts = [summary.encoder, *(text for reject in summary.rejects for text in (reject.reason, reject.detail))]
    return (
        all(type(number) is int and number >= 0 for number in (*counts, *places))
        and all(isinstance(text, str) for text in texts)
        and all(reject.row < summary.rows and reject.record < summary.records for reject in summary.rejects)
    )


def _agree(summary: UnitSummary, documents: UnitDocuments) -> bool:
    lengths, runs = documents.lengths, documents.run_counts
    rising = np.all(np.diff(documents.rows) > 0) and np.all((documents.rows >= 0) & (documents.rows < summary.rows))
    return bool(
        rising
        and np.all(lengths > 0)
        and np.all(runs >= 0)
        and int(lengths.sum(dtype=np.int64)) == summary.tokens
        and int(runs.sum(dtype=np.int64)) == summary.runs
    )


def _joined(arrays: Sequence[NDArray[Any]], dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.concatenate(arrays).astype(dtype, copy=False) if arrays else np.empty(0, dtype)


def _raw(array: NDArray[Any], dtype: np.dtype[Any]) -> memoryview:
    return np.ascontiguousarray(array, dtype=dtype).data
