"""Assembly: a stretch of the plan in, one shard out. Fetches ids and runs from the token store, a row group at a time.

A pure task of a worker. Nothing here knows how documents were chosen for a pack.
"""

import os
import resource
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from packtool.contract import IGNORED, PADDING_DOC
from packtool.files import naming
from packtool.planning import Records, read_packs
from packtool.shards import Int32s, Int64s, PackBatch, ShardInfo, ShardWriter
from packtool.token_store import store_changed

_MANY_FILES = 1 << 14
"""A row group may need documents of as many units as it has documents, and opening a file for each takes time."""


@dataclass(frozen=True, slots=True)
class StoredUnitFiles:
    """Where assembly finds one unit's ids and runs."""

    ids: Path
    documents: Path
    runs_offset: int
    """Where the runs begin in ``documents``, in bytes."""


@dataclass(frozen=True, slots=True)
class ShardTask:
    """One shard to be made."""

    path: Path
    """Where it goes; it appears there when it is whole."""
    name: str
    """What it is called in the dataset."""
    plan_folder: Path
    units_file: Path
    """A list of the run's units (see ``write_units``)."""
    first_pack: int
    stop_pack: int
    row_group_packs: int
    max_length: int
    pad_id: int | None
    """Fill every pack to max_length with it; None: packs stay as long as they are."""


def write_shard(task: ShardTask) -> ShardInfo:
    """Make one shard.

    Raises:
        PacktoolError: the token store is not what the plan was made from.
    """
    # Files are not kept open from one shard to the next: they would hold on to disk space after the run.
    with Fetcher(read_units(task.units_file)) as fetcher, ShardWriter(task.path, task.name) as writer:
        for first in range(task.first_pack, task.stop_pack, task.row_group_packs):
            stop = min(first + task.row_group_packs, task.stop_pack)
            segments, pack_segments = read_packs(task.plan_folder, first, stop)
            writer.write(assemble(segments, pack_segments, fetcher, task.max_length, task.pad_id))
    if writer.info is None:
        raise AssertionError("a closed shard has its info")
    return writer.info


def assemble(
    segments: Records, pack_segments: Int32s, fetcher: "Fetcher", max_length: int, pad_id: int | None
) -> PackBatch:
    """Lay the packs of one row group end to end.

    Args:
        segments: SEGMENT records of the plan, pack after pack.
        pack_segments: int32 [P].
        fetcher: gives ids and runs.
        max_length: to which packs are filled, with ``pad_id``.
        pad_id: None for no padding.
    """
    lengths = np.ascontiguousarray(segments["length"])
    doc_ids = np.ascontiguousarray(segments["doc_id"])
    offsets = np.ascontiguousarray(segments["offset"])
    if pad_id is None:
        places = np.arange(len(segments))
    else:
        lengths, doc_ids, offsets, pack_segments, places = _with_padding(
            lengths, doc_ids, offsets, pack_segments, max_length
        )
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    ids = np.empty(int(lengths.sum(dtype=np.int64)), dtype=np.int32)
    if pad_id is not None:
        ids.fill(pad_id)
    fetcher.fetch_ids(segments, starts[places], ids)
    first_segments = np.cumsum(pack_segments, dtype=np.int64) - pack_segments
    return PackBatch(
        input_ids=ids,
        labels=_labels(ids, starts, *fetcher.fetch_runs(segments, starts[places])),
        position_ids=_positions(starts, lengths),
        seq_lengths=lengths,
        doc_ids=doc_ids,
        doc_offsets=offsets,
        pack_tokens=np.add.reduceat(lengths, first_segments).astype(np.int32),
        pack_segments=pack_segments,
    )


def _labels(ids: Int32s, starts: Int64s, run_starts: Int64s, run_stops: Int64s) -> Int32s:
    """The ids inside the runs, IGNORED outside of them and at ``starts``; runs are disjoint, in any order."""
    # Stretches that are ignored and that train, in turn: up to the first run, that run, up to the second one, ...
    edges = np.empty(2 * len(run_starts) + 2, dtype=np.int64)
    edges[0], edges[-1] = 0, len(ids)
    edges[1:-1:2], edges[2:-1:2] = np.sort(run_starts), np.sort(run_stops)
    ignored = np.repeat(np.arange(len(edges) - 1) % 2 == 0, np.diff(edges))
    ignored[starts] = True  # nothing inside a segment predicts its first token
    labels = ids.copy()
    labels[ignored] = IGNORED
    return labels


def _positions(starts: Int64s, lengths: Int32s) -> Int32s:
    """0, 1, 2, ... from every one of ``starts``."""
    positions = np.arange(int(lengths.sum(dtype=np.int64)), dtype=np.int32)
    positions -= np.repeat(starts.astype(np.int32), lengths)
    return positions


def _with_padding(
    lengths: Int32s, doc_ids: Int64s, offsets: Int32s, pack_segments: Int32s, max_length: int
) -> tuple[Int32s, Int64s, Int32s, Int32s, Int64s]:
    """Add one padding segment to every pack that is not full; also where the real segments are then."""
    ends = np.cumsum(pack_segments, dtype=np.int64)
    missing = (max_length - np.add.reduceat(lengths, ends - pack_segments)).astype(np.int32)
    short = missing > 0
    at = ends[short]
    padded = np.insert(lengths, at, missing[short])
    is_real = np.insert(np.ones(len(lengths), dtype=np.bool_), at, False)
    return (
        padded,
        np.insert(doc_ids, at, PADDING_DOC),
        np.insert(offsets, at, 0),
        (pack_segments + short).astype(np.int32),
        np.flatnonzero(is_real),
    )


class Fetcher:
    """Reads ids and runs of segments from the units' files.

    With ``pread``, not a memory map: pages of a map that was read at random count as this process's memory.
    """

    def __init__(self, units: tuple[StoredUnitFiles, ...]) -> None:
        """Fetch from ``units``, which segments know by index."""
        self._units = units
        self._store = units[0].ids.parent.parent if units else Path()
        self._open: OrderedDict[Path, int] = OrderedDict()
        self._most_open = max(16, _files_allowed() // 2)

    def fetch_ids(self, segments: Records, places: Int64s, into: Int32s) -> None:
        """Copy each segment's ids to ``into``, from index ``places`` on."""
        view = into.view(np.uint8).data
        order = np.lexsort((segments["start"], segments["unit"]))
        part = segments[order]
        rows = zip(
            part["unit"].tolist(), part["start"].tolist(), part["length"].tolist(), places[order].tolist(), strict=True
        )
        unit, handle = -1, -1
        with naming(self._store):
            for number, start, length, place in rows:
                if number != unit:
                    unit, handle = number, self._handle(self._units[number].ids)
                if os.preadv(handle, [view[4 * place : 4 * (place + length)]], 4 * start) != 4 * length:
                    raise store_changed(self._units[number].ids)

    def fetch_runs(self, segments: Records, places: Int64s) -> tuple[Int64s, Int64s]:
        """Trained runs inside the segments, as indices where segment s begins at ``places[s]``.

        Returns:
            starts and stops, int64 [R] each.
        """
        counts = segments["run_count"]
        one = np.flatnonzero(counts == 1)
        several = np.flatnonzero(counts > 1)
        owner = np.concatenate([one, np.repeat(several, counts[several])])
        read = self._read_runs(segments[several])
        first = np.concatenate([segments["run_first"][one], read[:, 0]]).astype(np.int64)
        last = np.concatenate([segments["run_stop"][one], read[:, 1]]).astype(np.int64)
        offsets, lengths = segments["offset"][owner].astype(np.int64), segments["length"][owner]
        starts, stops = np.clip(first - offsets, 0, lengths), np.clip(last - offsets, 0, lengths)
        inside = np.flatnonzero(starts < stops)
        starts, stops, at = starts[inside], stops[inside], places[owner[inside]]
        return starts + at, stops + at

    def _read_runs(self, segments: Records) -> Int32s:
        """The runs of the documents of segments, one after the other, int32 [R, 2]."""
        counts = segments["run_count"]
        runs = np.empty((int(counts.sum(dtype=np.int64)), 2), dtype=np.int32)
        view = runs.reshape(-1).view(np.uint8).data
        stops = np.cumsum(counts, dtype=np.int64)
        rows = zip(
            segments["unit"].tolist(),
            segments["run_first"].tolist(),
            (stops - counts).tolist(),
            stops.tolist(),
            strict=True,
        )
        with naming(self._store):
            for number, first, start, stop in rows:
                unit = self._units[number]
                into = view[8 * start : 8 * stop]
                if os.preadv(self._handle(unit.documents), [into], unit.runs_offset + 8 * first) != len(into):
                    raise store_changed(unit.documents)
        return runs

    def _handle(self, path: Path) -> int:
        handle = self._open.get(path)
        if handle is None:
            if len(self._open) >= self._most_open:
                os.close(self._open.popitem(last=False)[1])
            handle = self._open[path] = os.open(path, os.O_RDONLY)
        return handle

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._open:
            os.close(self._open.popitem()[1])


def _files_allowed() -> int:
    """How many files this process may have open, after asking for as many as a large run has use for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MANY_FILES if hard == resource.RLIM_INFINITY else min(hard, _MANY_FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        return soft  # some systems have a limit below the one they tell
    return wanted


def write_units(units: Iterator[StoredUnitFiles], path: Path) -> None:
    """Write the list of units that ``ShardTask.units_file`` names."""
    with naming(path), path.open("wb") as file:
        for unit in units:
            # NUL is the one byte that no path holds.
            for field in (os.fsencode(unit.ids), os.fsencode(unit.documents), b"%d" % unit.runs_offset):
                file.write(field + b"\0")


def read_units(path: Path) -> tuple[StoredUnitFiles, ...]:
    """The list that ``write_units`` wrote."""
    fields = path.read_bytes().split(b"\0")[:-1]
    rows = zip(fields[::3], fields[1::3], fields[2::3], strict=True)
    return tuple(
        StoredUnitFiles(Path(os.fsdecode(ids)), Path(os.fsdecode(documents)), int(offset))
        for ids, documents, offset in rows
    )
