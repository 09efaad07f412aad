"""Who notices whom: takes a trial and how to run it, changes tokens of some segments and watches the others.

Gives how far logits moved. Shapes stay as they are, so where nothing is seen, nothing moves, to the last bit. Does not
know what movement is too much.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from packtool.errors import PacktoolError
from packtool.torch.trial import Forward, Segment, Trial, difference

MOST_PERTURBED = 8
"""So many segments are changed one at a time. Where there are more, all are changed in groups besides."""
_PERTURBED_IN_CONTROL = 4


@dataclass(frozen=True, slots=True)
class Leak:
    """Changing the tokens of one segment changed the logits of another."""

    source: int
    """Index of the segment that was changed, in the order of the batch."""
    target: int
    """Index of the segment that noticed."""
    difference: float
    """The largest change of a logit."""


@dataclass(frozen=True, slots=True)
class Influence:
    """How far segments were moved by others."""

    leaks: tuple[Leak, ...]
    """Every pair that was seen to move at all, the largest first."""
    backward: float
    """The largest of those into a segment that stands before its source in the row: what a model that looks back only
    does by rounding alone."""

    @property
    def largest(self) -> float:
        return self.leaks[0].difference if self.leaks else 0.0


def find_influence(forward: Forward, given: Trial, packed: Tensor) -> Influence:
    """Every segment is changed, and every pair of two is looked at.

    With up to ``MOST_PERTURBED`` segments, each is changed by itself. With more, so many of them are, and then all
    in groups: for each binary digit of a segment's number, those that have it change and the others are watched, and
    the other way round. Two numbers differ in some digit, so no pair is left out, in 2 log2(S) passes.
    """
    count = len(given.segments)
    leaks = find_leaks(forward, given, packed, spread(count, MOST_PERTURBED))
    backward = max((leak.difference for leak in leaks if _looks_ahead(given, leak)), default=0.0)
    if count > MOST_PERTURBED:
        groups = [
            [number for number in range(count) if (number >> digit & 1) == bit]
            for digit in range((count - 1).bit_length())
            for bit in (0, 1)
        ]
        found = [
            (moved, target, group)
            for group in groups
            for target, moved in enumerate(watch(forward, given, packed, group))
        ]
        moved, target, group = max(found, key=lambda each: each[0])
        if moved > max((leak.difference for leak in leaks), default=0.0):
            leaks.append(Leak(_source(forward, given, packed, group, target), target, moved))
    return Influence(tuple(sorted(leaks, key=lambda leak: -leak.difference)), backward)


def find_leaks(forward: Forward, given: Trial, packed: Tensor, sources: Sequence[int]) -> list[Leak]:
    """How much each other segment noticed of each of ``sources``; pairs that noticed nothing at all are left out."""
    return [
        Leak(source, target, moved)
        for source in sources
        for target, moved in enumerate(watch(forward, given, packed, [source]))
        if moved > 0
    ]


def watch(forward: Forward, given: Trial, packed: Tensor, sources: Sequence[int]) -> list[float]:
    """The largest change of a logit in each segment when ``sources`` are changed at once; 0 for themselves."""
    logits = forward(given.with_other_tokens(*(given.segments[source] for source in sources)))
    changed = frozenset(sources)
    return [
        0.0 if target in changed else difference(logits[segment.place], packed[segment.place])
        for target, segment in enumerate(given.segments)
    ]


def largest_when_open(model: nn.Module, forward: Forward, given: Trial) -> float:
    """The largest influence of one segment on another where they are meant to see each other, over all ways of it."""
    most = 0.0
    for open_to_all in _controls(model, given):
        try:
            packed = forward(open_to_all)
            leaks = find_leaks(forward, open_to_all, packed, spread(len(given.segments), _PERTURBED_IN_CONTROL))
        except PacktoolError:
            continue  # this model does not take such a mask; another control may do
        most = max([most, *(leak.difference for leak in leaks)])
    return most


def spread(count: int, most: int) -> list[int]:
    """At most ``most`` of the numbers below ``count``, evenly spread, 0 among them."""
    few = min(count, most)
    return [number * count // few for number in range(few)]


def _source(forward: Forward, given: Trial, packed: Tensor, group: Sequence[int], target: int) -> int:
    """The one of ``group`` that moves ``target`` most, by halving."""
    while len(group) > 1:
        half = len(group) // 2
        moved = [watch(forward, given, packed, part)[target] for part in (group[:half], group[half:])]
        group = group[:half] if moved[0] >= moved[1] else group[half:]
    return group[0]


def _looks_ahead(given: Trial, leak: Leak) -> bool:
    source, target = given.segments[leak.source], given.segments[leak.target]
    return source.row == target.row and target.start < source.start


def _controls(model: nn.Module, given: Trial) -> Iterator[Trial]:
    """The batch with nothing that would keep segments apart, in the ways that models can be told so."""
    ones = torch.ones_like(given.ids)
    bare = replace(given, mask=ones, varlen={}, seq_idx=None)
    yield bare
    rows, length = given.ids.shape
    running = torch.arange(length, device=ones.device).expand(rows, length)
    most = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    if isinstance(most, int) and most < length:
        running = running % most
    # One segment over everything is what a mask of ones means to a varlen kernel.
    whole = tuple(Segment(row, 0, length) for row in range(rows))
    if rows == 1:
        yield replace(
            replace(bare, segments=whole, mask=None, positions=running).with_varlen(), segments=given.segments
        )
    yield replace(bare, positions=running)
    yield replace(bare, positions=None)
