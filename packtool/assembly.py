"""Assembly: a stretch of the plan in, one shard out. Fetches ids and runs from the token store, a row group at a time.

A pure task of a worker. Nothing here knows how documents were chosen for a pack.
"""

import errno
import mmap
import os
import resource
import sys
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packtool.contract import IGNORED, PADDING_DOC
from packtool.files import naming
from packtool.planning import Records, read_packs
from packtool.shards import Int32s, Int64s, PackBatch, ShardInfo, ShardWriter
from packtool.token_store import store_changed

_MANY_FILES = 1 << 14
"""A row group may need documents of as many units as it has documents, and opening a file for each takes time."""

MAPPED_BYTES = 256 << 20
"""A store with no more ids and runs is mapped; workers share its pages."""
_KEPT_BYTES = 24 << 20
"""The C library maps larger blocks anew each time, and gives the end of its memory back where twice as much is free.

It learns that from the largest block that was ever freed, and new pages cost more than what is written to them.
"""
_POPULATE_READ = 22
"""To ``madvise``: bring all pages in, and say now what would end the process if it were found later."""


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
    np.empty(_KEPT_BYTES, dtype=np.uint8)  # and freed
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
    ids = fetcher.fetch_ids(segments)
    if pad_id is not None:
        ids = _padded(ids, starts, lengths, doc_ids == PADDING_DOC, pad_id)
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


def _padded(ids: Int32s, starts: Int64s, lengths: Int32s, is_padding: NDArray[np.bool_], pad_id: int) -> Int32s:
    """The ids with padding among them, given where all segments begin in the result and which ones are padding."""
    padding = np.full(lengths[is_padding].max(initial=0), pad_id, dtype=np.int32)
    parts: list[Int32s] = []
    taken = padded = 0
    for start, length in zip(starts[is_padding].tolist(), lengths[is_padding].tolist(), strict=True):
        parts += [ids[taken : start - padded], padding[:length]]
        taken = start - padded
        padded += length
    return np.concatenate([*parts, ids[taken:]])


class Fetcher:
    """Gives ids and runs of segments, from the units' files.

    Those of a small store are mapped, so that Arrow lays segments end to end without a call for each. A large one is
    read with ``preadv``: pages of a map that was read at random count as this process's memory.
    """

    def __init__(self, units: tuple[StoredUnitFiles, ...]) -> None:
        """Fetch from ``units``, which segments know by index."""
        self._ids = [unit.ids for unit in units]
        self._documents = [unit.documents for unit in units]
        self._runs_offsets = np.array([unit.runs_offset for unit in units], dtype=np.int64)
        self._store = units[0].ids.parent.parent if units else Path()
        self._open: OrderedDict[Path, int] = OrderedDict()
        self._most_open = max(16, _files_allowed() // 2)
        self._maps: dict[Path, pa.Buffer] | None = None
        self._are_mapped = True
        """Until it is found that they cannot be."""

    def fetch_ids(self, segments: Records) -> Int32s:
        """The ids of segments, laid end to end."""
        sizes = 4 * segments["length"].astype(np.int64)
        return self._fetch(self._ids, _Stretches(segments["unit"], 4 * segments["start"], sizes))

    def fetch_runs(self, segments: Records, places: Int64s) -> tuple[Int64s, Int64s]:
        """Trained runs inside the segments, as indices where segment s begins at ``places[s]``.

        Returns:
            starts and stops, int64 [R] each.
        """
        counts = segments["run_count"]
        one = np.flatnonzero(counts == 1)
        several = np.flatnonzero(counts > 1)
        owner = np.concatenate([one, np.repeat(several, counts[several])])
        read = self._fetch_runs(segments[several])
        first = np.concatenate([segments["run_first"][one], read[:, 0]]).astype(np.int64)
        last = np.concatenate([segments["run_stop"][one], read[:, 1]]).astype(np.int64)
        offsets, lengths = segments["offset"][owner].astype(np.int64), segments["length"][owner]
        starts, stops = np.clip(first - offsets, 0, lengths), np.clip(last - offsets, 0, lengths)
        inside = np.flatnonzero(starts < stops)
        starts, stops, at = starts[inside], stops[inside], places[owner[inside]]
        return starts + at, stops + at

    def _fetch_runs(self, segments: Records) -> Int32s:
        """The runs of the documents of segments, one after the other, int32 [R, 2]."""
        units = segments["unit"]
        firsts = self._runs_offsets[units] + 8 * segments["run_first"].astype(np.int64)
        sizes = 8 * segments["run_count"].astype(np.int64)
        return self._fetch(self._documents, _Stretches(units, firsts, sizes)).reshape(-1, 2)

    def _fetch(self, paths: Sequence[Path], stretches: "_Stretches") -> Int32s:
        """Stretches of files laid end to end, int32."""
        if not len(stretches.units):
            return np.empty(0, dtype=np.int32)
        with naming(self._store):
            maps = self._mapped()
            if maps is not None:
                return _gathered(paths, maps, stretches)
            return self._read(paths, stretches)

    def _mapped(self) -> "dict[Path, pa.Buffer] | None":
        """All files, if they are small and can be mapped."""
        if self._are_mapped and self._maps is None:
            paths = [*self._ids, *self._documents]
            # A map keeps its file open.
            if len(paths) <= self._most_open and _are_at_most(paths, MAPPED_BYTES):
                self._maps = _all_mapped(paths)
            self._are_mapped = self._maps is not None
        return self._maps

    def _read(self, paths: Sequence[Path], stretches: "_Stretches") -> Int32s:
        into = np.empty(int(stretches.sizes.sum()) // 4, dtype=np.int32)
        view = into.view(np.uint8).data
        order, firsts, starts, stops = stretches.in_file_order()
        unit, handle = -1, -1
        rows = zip(stretches.units[order].tolist(), firsts.tolist(), starts.tolist(), stops.tolist(), strict=True)
        for number, first, start, stop in rows:
            if number != unit:
                unit, handle = number, self._handle(paths[number])
            while start < stop:  # a read gives no more than 2 GiB
                read = os.preadv(handle, [view[start:stop]], first)
                if not read:
                    raise store_changed(paths[number])
                start += read
                first += read
        return into

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
        self._maps = None  # the pages stay as long as an array needs them, and no array does
        while self._open:
            os.close(self._open.popitem()[1])


@dataclass(frozen=True, slots=True)
class _Stretches:
    """Stretches of the files of units, in bytes; all are whole int32, and none is empty."""

    units: Int32s
    firsts: Int64s
    sizes: Int64s

    def in_file_order(self) -> tuple[Int64s, Int64s, Int64s, Int64s]:
        """Where to read what, with neighbours that stay neighbours as one.

        Returns:
            int64 each, one entry a read: the index of its first stretch, its first byte in the file, and its first
            byte and one past its last where all stretches are laid end to end.
        """
        stops = np.cumsum(self.sizes)
        order = np.lexsort((self.firsts, self.units))
        units, firsts = self.units[order], self.firsts[order]
        there, beyond = (stops - self.sizes)[order], stops[order]
        begins = np.ones(len(order), dtype=np.bool_)
        begins[1:] = units[1:] != units[:-1]
        begins[1:] |= firsts[1:] != (firsts + self.sizes[order])[:-1]
        begins[1:] |= there[1:] != beyond[:-1]
        at = np.flatnonzero(begins)
        return order[at], firsts[at], there[at], beyond[np.append(at[1:], len(order)) - 1]


def _gathered(paths: Sequence[Path], maps: dict[Path, pa.Buffer], stretches: _Stretches) -> Int32s:
    """Stretches of mapped files laid end to end.

    Each is a "view" of Arrow's: its size, its first bytes (which nobody looks at), its file and where it begins there,
    int32 each; but one of at most 12 bytes stands in the view itself, behind its size.
    """
    units, files = np.unique(stretches.units, return_inverse=True)
    sources = [maps[paths[unit]] for unit in units.tolist()]
    there = np.array([source.size for source in sources])
    beyond = np.flatnonzero(stretches.firsts + stretches.sizes > there[files])
    if len(beyond):
        raise store_changed(paths[stretches.units[beyond[0]]])
    views = np.zeros((len(files), 4), dtype=np.int32)
    views[:, 0], views[:, 2], views[:, 3] = stretches.sizes, files, stretches.firsts
    for short in np.flatnonzero(stretches.sizes <= 12).tolist():
        count = int(stretches.sizes[short]) // 4
        views[short, 1:] = 0
        views[short, 1 : 1 + count] = np.frombuffer(
            sources[files[short]], np.int32, count, int(stretches.firsts[short])
        )
    buffers = [None, pa.py_buffer(views), *sources]
    array = pa.Array.from_buffers(pa.binary_view(), len(views), buffers)
    # Not from Arrow's own pool: its pages are large, and where they are new, they can cost more than all the rest.
    joined = array.cast(pa.large_binary(), memory_pool=pa.system_memory_pool())
    return np.frombuffer(joined.buffers()[2], np.int32, int(stretches.sizes.sum()) // 4)


def _are_at_most(paths: Sequence[Path], most: int) -> bool:
    for path in paths:
        most -= path.stat().st_size
        if most < 0:
            return False
    return True


def _all_mapped(paths: Sequence[Path]) -> dict[Path, pa.Buffer] | None:
    """The files as they are in the system's cache; None where they cannot be mapped."""
    try:
        return {path: _map(path) for path in paths}
    except OSError:
        # Some file systems have no maps; and whatever else it is, reading the file will say.
        return None


def _map(path: Path) -> pa.Buffer:
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return pa.py_buffer(b"")
        pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if sys.platform == "linux":
        try:
            pages.madvise(_POPULATE_READ)
        except OSError as error:
            if error.errno != errno.EINVAL:  # an older kernel
                raise
    return pa.py_buffer(pages)


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
