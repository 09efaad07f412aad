"""How few packs could do, whatever the algorithm: lower bounds from a histogram of lengths."""

import numpy as np

from packtool.packing.histogram import Histogram
from packtool.packing.packing import check_limits

_LOW_FILL = 0.95
"""Of packs that are worth a word."""


def joined_bound(histogram: Histogram, max_length: int, max_segments: int | None = None) -> int:
    """Packs needed where items may be cut anywhere: all tokens, and a segment for every item, need a place.

    Args:
        histogram: lengths >= 1.
        max_length: tokens that a pack has room for.
        max_segments: segments that a pack has room for; None for any number.

    Raises:
        ValueError: a limit is below 1.
    """
    check_limits(max_length, max_segments)
    by_tokens = -(-histogram.tokens // max_length)
    by_segments = -(-histogram.items // max_segments) if max_segments is not None else 0
    return max(by_tokens, by_segments)


def whole_bound(histogram: Histogram, max_length: int, max_segments: int | None = None) -> int:
    """Packs needed where items stay whole: the larger of ``joined_bound`` and Martello and Toth's bound L2.

    L2 (Martello and Toth, "Lower bounds and reduction procedures for the bin packing problem", Discrete
    Applied Mathematics 28, 1990): for a threshold k, items longer than max_length - k share a pack with no
    item >= k; those above half of max_length share none with each other; the items from k to a half must go
    into what these leave free, and the rest of their tokens into more packs. L2 is the most over k; only
    lengths that occur need to be tried.

    Args:
        histogram: lengths from 1 to ``max_length``.
        max_length: tokens that a pack has room for.
        max_segments: segments that a pack has room for; None for any number.

    Raises:
        ValueError: a length is above ``max_length``, or a limit is below 1.
    """
    bound = joined_bound(histogram, max_length, max_segments)
    lengths, counts = histogram.lengths, histogram.counts
    if not len(lengths):
        return bound
    if lengths[-1] > max_length:
        raise ValueError(f"an item has {lengths[-1]} tokens, more than max_length {max_length}")
    # items and tokens of all lengths before the i-th
    items = np.concatenate([[0], np.cumsum(counts)])
    tokens = np.concatenate([[0], np.cumsum(lengths * counts)])
    half = int(np.searchsorted(lengths, max_length // 2, side="right"))
    low = np.arange(half + 1)
    threshold = np.append(lengths[:half], max_length // 2)  # the last one leaves no small items
    high = np.searchsorted(lengths, max_length - threshold, side="right")
    middle = items[high] - items[half]
    free = middle * max_length - (tokens[high] - tokens[half])
    over = (tokens[half] - tokens[low]) - free
    more = np.maximum(0, -(-over // max_length))
    return max(bound, int((items[-1] - items[half] + more).max()))


def only_halves(histogram: Histogram, bound: int, packs: int, max_length: int) -> bool:
    """Whether no packer can fill packs with these segments, and most packs hold one of more than half of a pack.

    No two of such segments share a pack; beside one just over half, nearly half of the pack stays empty unless there
    are enough small segments to fill it. Most segments may be small all the same: it is packs that are counted.

    Args:
        histogram: lengths of the segments.
        bound: packs that no plan of them goes below.
        packs: packs that they are in.
        max_length: tokens that a pack has room for.
    """
    large = int(histogram.counts[2 * histogram.lengths > max_length].sum())
    return histogram.tokens < _LOW_FILL * bound * max_length and 2 * large > packs
