"""Every segment and reject of a dataset as one small record, sorted on disk, so that documents come together.

Takes records in any order and gives them in that of the plan (or of the sources); memory is bounded by two constants.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packtool.errors import BAD_RECORD_REASONS, LEFT_OUT_REASONS
from packtool.files import naming
from packtool.hashing import U64, order_hash
from packtool.shards import Int64s

STRETCH = np.dtype(
    [
        ("doc_id", "<i8"),
        ("pack", "<i8"),  # the pack's number in the dataset; for a reject -1 - its line's index in rejects.jsonl
        ("ids", "<u8"),  # keyed checksum of its tokens; for a reject its own checksum
        ("labels", "<u8"),  # keyed checksum of its labels
        ("offset", "<i4"),
        ("length", "<i4"),  # 0 for a record that never became tokens
        ("place", "<i4"),  # the number of the segment in its pack
        ("reason", "i1"),  # 0 for a segment, else an index into REASONS
        ("ends_text", "?"),  # its last token is a trained EOS, or there is no telling
    ]
)
REASONS = ("", *sorted(BAD_RECORD_REASONS), *sorted(LEFT_OUT_REASONS))

Stretches = NDArray[np.void]

_BUFFERED = 1 << 19
"""Records sorted at a time in memory."""
_MERGED = 1 << 19
"""Records of all runs together that a merge holds."""
_FEWEST = 16
"""Records of one run that it holds at least."""


@dataclass(frozen=True, slots=True)
class Order:
    """The order of documents in a sorted file."""

    seed: int | None
    """Documents in the order of the hash with this seed, as they are planned; None: in the order of the sources."""

    def keys(self, doc_ids: Int64s) -> U64:
        """What to sort by; different for different documents."""
        if self.seed is None:
            # Negative ids, which no document has, come last instead of first.
            return doc_ids.astype(np.uint64)
        return order_hash(self.seed, doc_ids)


@dataclass(slots=True)
class Spill:
    """Takes stretches and leaves them in sorted runs, one file each."""

    folder: Path
    name: str
    """What its files' names begin with; one spill a name."""
    order: Order
    runs: list[Path] = field(default_factory=list)
    _parts: list[Stretches] = field(default_factory=list)
    _held: int = 0

    def add(self, stretches: Stretches) -> None:
        """Take in stretches, in any order."""
        self._parts.append(stretches)
        self._held += len(stretches)
        if self._held >= _BUFFERED:
            self.flush()

    def flush(self) -> None:
        """Write what is held as a run.

        Raises:
            OSError: it cannot be written; the error names the file.
        """
        if not self._held:
            return
        path = self.folder / f"{self.name}-{len(self.runs):06d}.bin"
        # Not tofile, whose error has neither number nor file.
        with naming(path), path.open("wb") as file:
            file.write(_sorted(np.concatenate(self._parts), self.order).data)
        self.runs.append(path)
        self._parts.clear()
        self._held = 0


def _sorted(stretches: Stretches, order: Order) -> Stretches:
    # A stretch of no tokens before another one at the same offset.
    keys = (stretches["length"] > 0, stretches["offset"], order.keys(stretches["doc_id"]))
    return stretches.take(np.lexsort(keys))


def merged(runs: Sequence[Path], order: Order) -> Iterator[Stretches]:
    """The stretches of all runs in one order, block by block; a document is never in two blocks."""
    readers = [_RunReader(path, order, max(_FEWEST, _MERGED // len(runs))) for path in runs]
    held = np.empty(0, STRETCH)
    while readers := [reader for reader in readers if reader.fill()]:
        # Whatever sorts before the last record that some run has in memory has been read from all runs.
        bound = min(reader.last_key for reader in readers)
        parts = [reader.take(bound) for reader in readers]
        block = _sorted(np.concatenate([held, *parts]), order)
        # Documents of the bound itself may go on in what is not read yet.
        whole = int(np.searchsorted(order.keys(block["doc_id"]), bound, side="left"))
        held = block[whole:]
        if whole:
            yield block[:whole]
    if len(held):
        yield held


class _RunReader:
    """One run, a block of it in memory."""

    def __init__(self, path: Path, order: Order, size: int) -> None:
        self._path = path
        self._order = order
        self._size = size
        self._offset = 0
        self._block = np.empty(0, STRETCH)
        self._keys: U64 = np.empty(0, np.uint64)

    def fill(self) -> bool:
        """Read on if nothing is held; whether there is anything."""
        if not len(self._block):
            self._block = np.fromfile(self._path, STRETCH, self._size, offset=self._offset)
            self._offset += self._block.nbytes
            self._keys = self._order.keys(self._block["doc_id"])
        return len(self._block) > 0

    @property
    def last_key(self) -> Any:
        return self._keys[-1]

    def take(self, bound: Any) -> Stretches:
        """What is held up to ``bound``, which is not held any more."""
        stop = int(np.searchsorted(self._keys, bound, side="right"))
        taken = self._block[:stop]
        self._block, self._keys = self._block[stop:], self._keys[stop:]
        return taken
