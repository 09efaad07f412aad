"""Next-fit in input order: lengths in, packs out, as a stream. It knows no item but the next."""

import numpy as np

from packtool.packing.packing import I32, OpenPack, Packing, StreamPart, blocks, check_lengths, check_limits


def plan(lengths: I32, max_length: int, max_segments: int | None = None) -> Packing:
    """Next-fit over ``lengths``: each pack takes items until the next one does not fit.

    Args:
        lengths: int32 [n], tokens of each item, 1 to ``max_length``.
        max_length: tokens that a pack has room for.
        max_segments: segments that a pack has room for; None for any number.

    Returns:
        Every item whole, items and packs in input order.

    Raises:
        ValueError: an item is empty or longer than ``max_length``, there are 2^31 items or more, or a limit
            is below 1.
    """
    return stream(lengths, max_length, max_segments, OpenPack()).ended()


def stream(lengths: I32, max_length: int, max_segments: int | None, begun: OpenPack) -> StreamPart:
    """The next chunk of a stream whose open pack is ``begun``; arguments and errors as for ``plan``."""
    check_limits(max_length, max_segments)
    check_lengths(lengths, max_length)
    room = max_segments if max_segments is not None else max_length
    counts: list[I32] = []
    for start, stop in blocks(len(lengths)):
        closed, begun = _fill(lengths[start:stop], max_length, room, begun)
        counts.append(closed)
    items = np.arange(len(lengths), dtype=np.int32)
    return StreamPart(items, np.concatenate([np.empty(0, dtype=np.int32), *counts]), begun)


def _fill(lengths: I32, max_length: int, room: int, begun: OpenPack) -> tuple[I32, OpenPack]:
    """Segments of the packs that one block closes, and the pack it leaves open."""
    n = len(lengths)
    ends = np.cumsum(lengths, dtype=np.int64)
    at = int(np.searchsorted(ends, max_length - begun.tokens, side="right"))
    at = min(at, room - begun.segments)
    if at == n:
        return np.empty(0, dtype=np.int32), OpenPack(begun.tokens + int(ends[-1]), begun.segments + n)
    closed = [begun.segments + at]  # never 0: a pack not yet begun has room for the first item
    # Where a pack that begins at item i would end, for every i; the chain from `at` visits the real ones.
    after = np.searchsorted(ends, ends - lengths + max_length, side="right")
    jumps = np.minimum(after, np.arange(n) + room).data
    while (then := jumps[at]) < n:
        closed.append(then - at)
        at = then
    return np.array(closed, dtype=np.int32), OpenPack(int(ends[-1] - ends[at] + lengths[at]), n - at)
