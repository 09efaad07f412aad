"""The fixed integer hashes everything rests on: document order and the conservation checksum.

All arithmetic is modulo 2^64 on numpy uint64 arrays, so results are the same on every machine.
"""

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_BLOCK = 1 << 15  # tokens mixed at a time: temporaries of 256 KiB stay in the processor's cache
_HIGH = np.uint64(32)
_PLACES = np.arange(_BLOCK, dtype=np.uint64) << _HIGH


def splitmix64(x: U64) -> U64:
    """The output function of SplitMix64 (Steele, Lea, Flood 2014) of each ``x``, as if ``x`` were the seed.

    Args:
        x: uint64 array of one dimension or more; not changed.

    Returns:
        uint64 array of the same shape. The map is a bijection.
    """
    z = x.copy()
    _mix(z, np.empty_like(z))
    return z


def _mix(z: U64, spare: U64) -> None:
    """``splitmix64`` in place; ``spare`` is written over."""
    z += _GOLDEN
    np.right_shift(z, np.uint64(30), out=spare)
    z ^= spare
    z *= _MIX_1
    np.right_shift(z, np.uint64(27), out=spare)
    z ^= spare
    z *= _MIX_2
    np.right_shift(z, np.uint64(31), out=spare)
    z ^= spare


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
    tokens = np.ascontiguousarray(ids, np.int32).view(np.uint32)
    checksums = np.zeros(len(ends), dtype=np.uint64)
    spare = np.empty(min(_BLOCK, total), dtype=np.uint64)
    for start in range(0, total, _BLOCK):
        stop = min(start + _BLOCK, total)
        first = int(np.searchsorted(ends, start, side="right"))
        last = int(np.searchsorted(ends, stop - 1, side="right")) + 1
        inside = np.minimum(ends[first:last], stop) - np.maximum(ends[first:last] - lengths[first:last], start)
        mixed = np.repeat((shift[first:last] + start).view(np.uint64) << _HIGH, inside)
        mixed += _PLACES[: stop - start]
        mixed |= tokens[start:stop]
        if key:
            mixed ^= np.uint64(key)
        _mix(mixed, spare[: stop - start])
        some = np.flatnonzero(inside)  # of the others `reduceat` would give a token that is not theirs
        checksums[first + some] += np.add.reduceat(mixed, (np.cumsum(inside) - inside)[some])
    return checksums
