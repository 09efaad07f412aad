"""What the planners are tried on: capacities at and beside powers of two, and lengths that are hard."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import strategies as st

from packtool.packing import OpenPack, Packing, StreamPart
from packtool.packing import packing as packing_module
from packtool.packing.packing import I32


@dataclass(frozen=True, slots=True)
class Case:
    lengths: list[int]
    max_length: int
    max_segments: int | None
    block: int
    """How many items the planner handles at a time."""

    @property
    def array(self) -> I32:
        return np.array(self.lengths, dtype=np.int32)


CAPACITIES = [1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 31, 32, 33, 64, 65, 97, 128, 129, 1024, 1025, 4096, 131072]


@st.composite
def cases(draw: st.DrawFn, longest: int = 1, most: int = 120) -> Case:
    """Lengths up to ``longest`` times the capacity."""
    max_length = draw(st.sampled_from(CAPACITIES))
    top = max_length * longest
    just_miss = [max_length // k + 1 for k in range(1, 6)]  # k of them are one token too long for a pack
    just_fit = [max_length // k for k in range(1, 6)]
    few = draw(st.lists(st.integers(1, top), min_size=1, max_size=4))  # many equals, so that runs form
    one = st.one_of(
        st.integers(1, top),
        st.sampled_from(few),
        st.sampled_from([length for length in just_miss + just_fit if 1 <= length <= top]),
    )
    lengths = draw(
        st.one_of(
            st.lists(one, max_size=most),
            st.lists(st.sampled_from(few), max_size=most),
            alike(few, most),
            st.builds(lambda n: [few[0]] * n, st.integers(0, most)),
        )
    )
    max_segments = draw(st.one_of(st.none(), st.integers(1, 5)))
    return Case(lengths, max_length, max_segments, draw(st.sampled_from([1, 2, 3, 7, 50, 1 << 16])))


def alike(pool: list[int], most: int) -> st.SearchStrategy[list[int]]:
    """Every length of ``pool`` many times: whole runs of packs are filled alike, and the last one in part."""
    counts = st.tuples(*(st.integers(1, most // len(pool)) for _ in pool))
    return counts.map(lambda ns: [length for length, n in zip(pool, ns, strict=True) for _ in range(n)])


@contextmanager
def blocks_of(items: int) -> Iterator[None]:
    """Planners handle ``items`` at a time, so that small inputs cross the borders of blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing_module, "BLOCK", items)
        yield


def chunk_by_chunk(
    stream: Callable[[I32, int, int | None, OpenPack], StreamPart],
    lengths: I32,
    cuts: list[int],
    max_length: int,
    max_segments: int | None,
) -> Packing:
    """The packing put together from a stream that is given ``lengths`` cut at ``cuts``."""
    parts = []
    begun = OpenPack()
    for chunk in np.split(lengths, cuts):
        parts.append(stream(chunk, max_length, max_segments, begun))
        begun = parts[-1].open
    bases = [0, *cuts]
    last = [begun.segments] if begun.segments else []
    whole = parts[0].offsets is None
    return Packing(
        items=np.concatenate([part.items + base for part, base in zip(parts, bases, strict=True)]),
        counts=np.array([*np.concatenate([part.counts for part in parts]).tolist(), *last], dtype=np.int32),
        offsets=None if whole else np.concatenate([part.offsets for part in parts]),
        lengths=None if whole else np.concatenate([part.lengths for part in parts]),
    )
