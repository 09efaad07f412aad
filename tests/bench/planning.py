"""Planning alone: which of n documents go into which pack, by packtool from counts and by TRL's tree item by item.

Also 10^10 documents, as a histogram. Lengths are log-normal with median 350.
"""

import resource
import sys
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any

from tests.bench.measuring import Stopwatch, run_function, take_turns
from tests.bench.report import Goal, Line
from tests.bench.setting import MAX_LENGTH, Setting

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SMALL_CORPUS = 10
_BLOCK = 1 << 20


def measure_planning(setting: Setting) -> list[Line]:
    """10^5 to 10^7 lengths (10^8 with ``full``; for a corpus of under 10 MB, a try, only 10^4); TRL up to 10^6."""
    powers = [4] if setting.megabytes < _SMALL_CORPUS else [5, 6, 7, *([8] if setting.full else [])]
    lines: list[Line] = []
    for power in powers:
        programs = {"packtool": lambda n=10**power: run_function(plan_with_packtool, n=n)}
        if power <= 6:
            programs["TRL's tree"] = lambda n=10**power: run_function(plan_with_trl, n=n)
        timings = take_turns(programs, setting.rounds)
        ours, theirs = timings["packtool"], timings.get("TRL's tree")
        for name, timing in timings.items():
            rate = f"{10**power / 1e6 / timing.seconds:.1f} M/s"
            ratio = theirs.seconds / ours.seconds if theirs is not None and timing is ours else None
            goal = Goal(50) if power == 6 and timing is ours else None
            fill = float(timing.facts["fill"])
            lines.append(Line(f"10^{power} lengths", name, timing, rate, fill, ratio, "faster" if ratio else "", goal))
    histogram = take_turns({"packtool": lambda: run_function(plan_histogram, n=10**10)}, setting.rounds)["packtool"]
    rate = f"{10**10 / 1e6 / histogram.seconds:,.0f} M/s"
    lines.append(Line("10^10 lengths as a histogram", "packtool", histogram, rate, float(histogram.facts["fill"])))
    return lines


def _lengths(n: int) -> "NDArray[np.int32]":
    """In blocks, so that making them needs no more memory than they do."""
    import numpy as np

    lengths = np.empty(n, dtype=np.int32)
    generator = np.random.default_rng(0)
    for first in range(0, n, _BLOCK):
        block = lengths[first : first + _BLOCK]
        block[:] = np.clip(generator.lognormal(np.log(350), 1.0, len(block)), 1, MAX_LENGTH)
    return lengths


# --- the contestants -----------------------------------------------------------------------------------------


def plan_with_packtool(n: int) -> dict[str, Any]:
    """Lengths in, every document's pack and place out; also the bytes a document that it held at most."""
    from packtool.packing import STRATEGIES

    lengths = _lengths(n)
    before = _peak()
    with Stopwatch() as watch:
        packing = STRATEGIES["bfd"].plan(lengths, MAX_LENGTH, None)
    packs = len(packing.counts)
    return {
        **watch.taken,
        "packs": packs,
        "fill": int(lengths.sum(dtype="int64")) / (packs * MAX_LENGTH),
        "bytes_a_document": (_peak() - before) / n,
    }


def plan_with_trl(n: int) -> dict[str, Any]:
    """The loop of TRL's ``bfd`` around its segment tree, without its tables; sorted by numpy, which is faster."""
    import numpy as np
    from trl.data_utils import _SegmentTree

    lengths = _lengths(n)
    with Stopwatch() as watch:
        order = np.argsort(-lengths, kind="stable")
        tree = _SegmentTree(MAX_LENGTH)
        tree.add(MAX_LENGTH)
        packs_by_space: defaultdict[int, deque[list[int]]] = defaultdict(deque)
        packs: list[list[int]] = []
        for length, document in zip(lengths[order].tolist(), order.tolist(), strict=True):
            space = tree.search(length)
            if space < MAX_LENGTH:
                pack = packs_by_space[space].popleft()
                if not packs_by_space[space]:
                    tree.remove(space)
            else:
                pack = []
                packs.append(pack)
            pack.append(document)
            left = space - length
            packs_by_space[left].append(pack)
            if left:
                tree.add(left)
    tokens = int(lengths.sum(dtype="int64"))
    return {**watch.taken, "packs": len(packs), "fill": tokens / (len(packs) * MAX_LENGTH)}


def plan_histogram(n: int) -> dict[str, Any]:
    """The plan of ``n`` documents, given how many have each length."""
    import numpy as np

    from packtool.packing.best_fit import plan_counts
    from packtool.packing.histogram import Histogram

    counts = np.bincount(_lengths(1_000_000)) * (n // 1_000_000)
    given = {length: count for length, count in enumerate(counts.tolist()) if count}
    with Stopwatch() as watch:
        histogram = Histogram.from_counts(given)
        plan = plan_counts(histogram, MAX_LENGTH)
    return {**watch.taken, "packs": plan.n_packs, "fill": histogram.tokens / (plan.n_packs * MAX_LENGTH)}


def _peak() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
