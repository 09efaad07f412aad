"""The fixed integer hashes everything rests on: document order and the conservation checksum.

All arithmetic is modulo 2^64 on numpy uint64 arrays, so results are the same on every machine.
"""

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_BLOCK = 1 << 15  # tokens mixed at a time: four temporaries of 256 KiB stay in the processor's cache


def splitmix64(x: U64) -> U64:
    """The output function of SplitMix64 (Steele, Lea, Flood 2014) of each ``x``, as if ``x`` were the seed.

    Args:
        x: uint64 array of one dimension or more; not changed.

    Returns:
        uint64 array of the same shape. The map is a bijection.
    """
    z = x + _GOLDEN
    z ^= z >> np.uint64(30)
    z *= _MIX_1
    z ^= z >> np.uint64(27)
    z *= _MIX_2
    z ^= z >> np.uint64(31)
    return z


def order_hash(seed: int, ids: NDArray[np.int64]) -> U64:
    """The key by which documents (or packs) are shuffled: splitmix64 of the seed and each id."""
    key = splitmix64(np.array([seed % (1 << 64)], dtype=np.uint64))
    return splitmix64(ids.astype(np.uint64) ^ key)


def odd_mix(doc_ids: NDArray[np.int64]) -> U64:
    """An odd 64-bit multiplier for each document, so that no document's checksum can be lost in the sum."""
    return splitmix64(doc_ids.astype(np.uint64)) | np.uint64(1)


def token_checksums(
    ids: NDArray[np.int32], lengths: NDArray[np.int32], offsets: NDArray[np.int32] | None = None, key: int = 0
) -> U64:
    """h of each stretch of tokens: the sum modulo 2^64 of a mix of (index in its document, token).

    h adds up over the pieces of a document, whatever the cuts.

    Args:
        ids: int32 [T], the stretches' tokens laid end to end.
        lengths: int32 [S], tokens in each stretch; sums to T. Zero is allowed and gives 0.
        offsets: int32 [S], the index in its document of each stretch's first token; zeros if None.
        key: 64 bits that are mixed in. With 0 it is the checksum that a dataset keeps; with a secret number nobody
            can find other tokens of the same checksum.

    Returns:
        uint64 [S].
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    if total != len(ids):
        raise ValueError(f"lengths sum to {total}, but there are {len(ids)} tokens")
    # index of a token = its place in `ids` minus its stretch's start, plus the stretch's offset
    shift = lengths - ends if offsets is None else lengths - ends + offsets
    running = np.zeros(len(ids) + 1, dtype=np.uint64)
    for start in range(0, len(ids), _BLOCK):
        stop = min(start + _BLOCK, len(ids))
        first = int(np.searchsorted(ends, start, side="right"))
        last = int(np.searchsorted(ends, stop - 1, side="right"))
        within = np.arange(start, stop, dtype=np.int64)
        inside = np.minimum(ends[first : last + 1], stop) - np.maximum(
            ends[first : last + 1] - lengths[first : last + 1], start
        )
        within += np.repeat(shift[first : last + 1], inside)
        mixed = within.view(np.uint64)
        mixed <<= np.uint64(32)
        mixed |= ids[start:stop].astype(np.uint32)
        if key:
            mixed ^= np.uint64(key)
        np.cumsum(splitmix64(mixed), out=running[start + 1 : stop + 1])
        running[start + 1 : stop + 1] += running[start]
    checksums: U64 = running[ends] - running[ends - lengths]
    return checksums
