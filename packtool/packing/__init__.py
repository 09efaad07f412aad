"""Planning: which items go into which pack, from their lengths alone; every strategy, by its name.

Nothing here knows tokens, text, files or seeds, and nothing is imported but numpy.
"""

from collections.abc import Callable
from dataclasses import dataclass

from packtool.packing import best_fit, bounds, in_order, pieces, wrapped
from packtool.packing.bounds import only_halves
from packtool.packing.histogram import Histogram
from packtool.packing.packing import I32, OpenPack, Packing, StreamPart
from packtool.packing.pieces import Cut, Overlong, Pieces, TrainedRuns, trained_in

__all__ = [
    "STRATEGIES",
    "Cut",
    "Histogram",
    "OpenPack",
    "Overlong",
    "Packing",
    "Pieces",
    "Strategy",
    "StreamPart",
    "TrainedRuns",
    "only_halves",
    "trained_in",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A way to pack, as data: whoever needs to know how a strategy behaves looks here, not at its name."""

    name: str
    plan: Callable[[I32, int, int | None], Packing]
    """(lengths, max_length, max_segments) -> which pieces go into which pack."""
    bound: Callable[[Histogram, int, int | None], int]
    """(histogram of the pieces, max_length, max_segments) -> packs that no plan by its rules goes below."""
    pieces: Callable[[I32, TrainedRuns, int, Overlong], Pieces] = pieces.cut_pieces
    """(lengths, runs, max_length, overlong) -> the pieces to plan, and what is left out before planning."""
    overlong: tuple[Overlong, ...]
    """What it can do with documents longer than max_length; the first is what ``auto`` means."""
    stream: Callable[[I32, int, int | None, OpenPack], StreamPart] | None = None
    """``plan`` chunk by chunk, where unshuffled input is one stream over all of it; None: it never is."""
    shuffles: bool = True
    """Shuffled unless the user says no; False: never, and asking for it is misuse."""
    keeps_untrained: bool = False
    """Segments without a trained token stay in the packs (but never a pack without one)."""

    def takes(self, overlong: str) -> Overlong | None:
        """The policy that ``overlong`` (one, or ``auto``) means here; None where it is not for this strategy."""
        if overlong == "auto":
            return self.overlong[0]
        return next((policy for policy in self.overlong if policy == overlong), None)


_WHOLE: tuple[Overlong, ...] = ("drop", "truncate", "truncate_turns", "error")
_SPLIT: tuple[Overlong, ...] = ("split",)

STRATEGIES = {
    strategy.name: strategy
    for strategy in (
        Strategy(name="bfd", plan=best_fit.plan, bound=bounds.whole_bound, overlong=_WHOLE),
        Strategy(name="bfd_split", plan=best_fit.plan, bound=bounds.whole_bound, overlong=_SPLIT),
        Strategy(
            name="wrapped",
            plan=wrapped.plan,
            stream=wrapped.stream,
            bound=bounds.joined_bound,
            pieces=pieces.keep_whole,
            overlong=_SPLIT,
            keeps_untrained=True,
        ),
        Strategy(
            name="in_order",
            plan=in_order.plan,
            stream=in_order.stream,
            bound=bounds.whole_bound,
            overlong=(*_WHOLE, "split"),
            shuffles=False,
        ),
    )
}
"""Every strategy by name; a new one is one entry here."""
