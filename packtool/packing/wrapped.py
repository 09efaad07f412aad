"""One stream cut every max_length tokens, wherever that falls. Lengths in, packs out, as a stream."""

from bisect import bisect_right

import numpy as np

from packtool.packing.packing import (
    I32,
    I64,
    OpenPack,
    Packing,
    StreamPart,
    blocks,
    check_lengths,
    check_limits,
)


def plan(lengths: I32, max_length: int, max_segments: int | None = None) -> Packing:
    """The items joined in input order and cut every ``max_length`` tokens.

    Args:
        lengths: int32 [n], tokens of each item, at least 1; longer than ``max_length`` is fine.
        max_length: tokens that a pack has room for.
        max_segments: segments that a pack has room for; None for any number.

    Returns:
        Every pack but the last is full, unless ``max_segments`` closed it; the last may be short. ``offsets``
        and ``lengths`` are given: an item may lie in several packs. The result is 12 bytes a segment.

    Raises:
        ValueError: an item is empty, there are 2^31 items or segments or more, or a limit is below 1.
    """
    return stream(lengths, max_length, max_segments, OpenPack()).ended()


def stream(lengths: I32, max_length: int, max_segments: int | None, begun: OpenPack) -> StreamPart:
    """The next chunk of a stream whose open pack is ``begun``; arguments and errors as for ``plan``."""
    check_limits(max_length, max_segments)
    check_lengths(lengths, None)
    tokens = int(lengths.sum(dtype=np.int64))
    # A cut inside an item ends a pack of exactly max_length tokens, so there are at most this many segments.
    most = len(lengths) + (begun.tokens + tokens) // max_length
    if most >= 1 << 31:
        raise ValueError(f"{most} segments in one plan; at most 2^31 - 1, plan the items in groups")
    items = np.empty(most, dtype=np.int32)
    offsets = np.empty(most, dtype=np.int32)
    sizes = np.empty(most, dtype=np.int32)
    counts: list[I32] = []
    done = 0
    for start, stop in blocks(len(lengths)):
        ends = np.cumsum(lengths[start:stop], dtype=np.int64)
        cuts = _pack_ends(ends, max_length, max_segments, begun)
        item, segment_ends = _cut(ends, cuts)
        begins = np.concatenate([[0], segment_ends[:-1]])
        here = slice(done, done + len(item))
        sizes[here] = segment_ends - begins
        offsets[here] = begins - (ends - lengths[start:stop])[item]
        items[here] = item + start
        done += len(item)
        # Segments up to each cut; with those that the open pack had before, each pack's are the differences.
        upto = np.searchsorted(segment_ends, cuts, side="right") + begun.segments
        counts.append(np.diff(upto, prepend=0).astype(np.int32))
        if len(cuts):
            begun = OpenPack(int(ends[-1] - cuts[-1]), len(item) + begun.segments - int(upto[-1]))
        else:
            begun = OpenPack(begun.tokens + int(ends[-1]), begun.segments + len(item))
    closed = np.concatenate([np.empty(0, dtype=np.int32), *counts])
    return StreamPart(items[:done], closed, begun, offsets[:done], sizes[:done])


def _pack_ends(ends: I64, max_length: int, max_segments: int | None, begun: OpenPack) -> I64:
    """Where packs end, in tokens from the block's start, before the block's last token.

    Args:
        ends: int64 [n], where each item of the block ends.
    """
    total = int(ends[-1])
    if max_segments is None:
        return np.arange(max_length - begun.tokens, total, max_length)
    item_ends = ends.data
    n = len(item_ends)
    cuts: list[int] = []
    full = max_length - begun.tokens  # where the pack has all its tokens
    after = max_segments - begun.segments  # the item behind the last one it has room for
    item = 0  # its first item in this block
    while True:
        if after > n or full < (item_ends[after - 1] if after else 0):
            if full >= total:
                break
            cut = full
            item = bisect_right(item_ends, cut, item, min(after, n))
        else:
            if after == n:
                break
            cut = item_ends[after - 1] if after else 0
            item = after
        cuts.append(cut)
        full = cut + max_length
        after = item + max_segments
    return np.array(cuts, dtype=np.int64)


def _cut(ends: I64, cuts: I64) -> tuple[I64, I64]:
    """Items cut at the packs' ends: each segment's item, and where it ends.

    Items ending at [3, 7, 8] cut at [3, 6] are segments of items [0, 1, 1, 2] that end at [3, 6, 7, 8].
    """
    item = np.searchsorted(ends, cuts, side="left")  # that a cut is inside, or at the end of
    inside = ends[item] != cuts
    inside &= cuts > 0  # a full pack that the block before left open ends where this one begins
    cuts, item = cuts[inside], item[inside]
    segment_ends = np.empty(len(ends) + len(cuts), dtype=np.int64)
    whole = np.ones(len(segment_ends), dtype=np.bool_)
    places = item + np.arange(len(cuts))
    whole[places] = False
    segment_ends[places] = cuts
    segment_ends[whole] = ends
    items = np.repeat(np.arange(len(ends)), 1 + np.bincount(item, minlength=len(ends)))
    return items, segment_ends
