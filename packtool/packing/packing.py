"""The nouns of planning: what goes into which pack, and the pack that a stream has begun.

They hold numbers of items and tokens only; nothing here knows what a token, a document's text or a file is.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

BLOCK = 1 << 15
"""Items handled at a time: int64 temporaries of 256 KiB stay in the processor's cache and out of the peak."""


@dataclass(frozen=True, slots=True)
class Packing:
    """Which items go into which pack, in pack order; a pack's segments in the order they stand in it.

    Items are the entries of the lengths that were planned. Pack 0 has the first ``counts[0]`` segments, pack
    1 the next ``counts[1]``, and so on: items [3, 0, 1] with counts [1, 2] is (3)(0, 1).
    """

    items: I32
    """int32 [S], the item each segment is of, an index into the planned lengths."""
    counts: I32
    """int32 [P], segments in each pack, all >= 1; they sum to S."""
    offsets: I32 | None = None
    """int32 [S], the index in its item of each segment's first token; None: every segment is a whole item."""
    lengths: I32 | None = None
    """int32 [S], tokens in each segment; None: every segment is a whole item."""


@dataclass(frozen=True, slots=True)
class OpenPack:
    """The pack that a stream has begun and not yet closed; the default is a stream that has not begun."""

    tokens: int = 0
    segments: int = 0


@dataclass(frozen=True, slots=True)
class StreamPart:
    """What one chunk of a stream adds to its packing.

    The parts' segments laid end to end are the segments of the whole stream's ``Packing`` (``items`` plus
    the number of items in earlier chunks), and so are their ``counts``, with ``open.segments`` of the last
    part as the last pack where it is not 0.
    """

    items: I32
    """int32 [S], the chunk's segments, as in ``Packing``; ``items`` counts from the chunk's start."""
    counts: I32
    """int32 [C], segments of each pack closed in this chunk; some of the first may be from earlier ones."""
    open: OpenPack
    """The pack that the next chunk continues; it is closed when something comes that it has no room for."""
    offsets: I32 | None = None
    lengths: I32 | None = None

    def ended(self) -> Packing:
        """The packing of a stream that is this one part: the open pack becomes the last one."""
        last = [self.open.segments] if self.open.segments else []
        counts = np.concatenate([self.counts, np.array(last, dtype=np.int32)])
        return Packing(self.items, counts, self.offsets, self.lengths)


def check_limits(max_length: int, max_segments: int | None) -> None:
    """Refuse limits under which no pack could take a token.

    Raises:
        ValueError: ``max_length`` or ``max_segments`` is below 1.
    """
    if max_length < 1:
        raise ValueError(f"max_length is {max_length}; a pack needs room for at least one token")
    if max_segments is not None and max_segments < 1:
        raise ValueError(f"max_segments is {max_segments}; a pack needs room for at least one segment")


def check_lengths(lengths: I32, longest: int | None) -> None:
    """Refuse lengths that cannot be planned: below 1, above ``longest``, or too many for an int32 index.

    Raises:
        ValueError: as above; the text names the first such item.
    """
    if len(lengths) >= 1 << 31:
        raise ValueError(f"{len(lengths)} items in one plan; at most 2^31 - 1, plan them in groups")
    if not len(lengths):
        return
    if int(lengths.min()) < 1:
        item = int(np.argmax(lengths < 1))
        raise ValueError(f"item {item} has {int(lengths[item])} tokens; every item needs at least one")
    if longest is not None and int(lengths.max()) > longest:
        item = int(np.argmax(lengths > longest))
        raise ValueError(f"item {item} has {int(lengths[item])} tokens, more than max_length {longest}")


def blocks(n: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of stretches of at most ``BLOCK`` that tile ``range(n)``."""
    for start in range(0, n, BLOCK):
        yield start, min(start + BLOCK, n)
