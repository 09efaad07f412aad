"""Does a model keep packed documents apart? Takes a model and a batch as training gives it, and finds out by trying.

Gives a report with a verdict, what leaked into what, and the likely cause. Trusts no list of models and no version
number: it compares numbers, and says "cannot tell" where the comparison could not have shown a leak.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn

from packtool.errors import Misuse, PacktoolError
from packtool.torch.causes import difference_cause, leak_cause
from packtool.torch.influence import Influence, Leak, find_influence, largest_when_open
from packtool.torch.losses import compare_gradients, compare_losses, summed_loss
from packtool.torch.trial import (
    Forward,
    Trial,
    attention_of,
    difference,
    forward_of,
    precision,
    read_batch,
    takes_no_dense_mask,
    undisturbed,
)

# Changing other tokens leaves the shapes as they are, so an isolated segment comes out the same to the last bit, but
# for layers that sort tokens of the whole row (experts), which then round otherwise. So much is let pass, in units of
# the dtype's precision, of the largest logit, and never more than this share of what a leak looks like:
_ROUNDING = 16
_FAINT = 1e-3
# Packed and alone have other shapes, hence other orders of summation, and errors grow with depth. What lies below is
# rounding, and what a segment is moved by beyond is none; in half precision neither can be said so sharply.
_DEEP_ROUNDING = 512
_MOST_DEEP_ROUNDING = 0.1
_SHARE_OF_LEAK = 0.01
_HALF_SHARE_OF_LEAK = 0.5
# The control must stand out: from what was seen without it, and from rounding.
_CONTROL_FACTOR = 5
_MOST_IN_CONTROL = 0.02


@dataclass(frozen=True, slots=True)
class IsolationReport:
    """What ``check_isolation`` found."""

    isolates: bool | None
    """True: no segment sees another, and each is as it is alone. False: one does, or is not. None: cannot tell."""
    cause: str
    """Empty if all is well; else what is the matter, the likely cause, and what to do."""
    largest_difference: float
    """The largest |packed logits - logits of the segment alone|."""
    influence: float
    """The largest change of a logit when other segments' tokens are changed."""
    control: float
    """The same under a mask of ones, where segments do see each other: how a leak of this model looks."""
    tolerance: float
    """An influence up to it is rounding."""
    leaks: tuple[Leak, ...]
    """Those above it, the largest first."""
    loss: float | None
    """Of the packed batch, as the model computes it; None without labels."""
    loss_alone: float | None
    """The mean over all trained tokens of the losses of each segment alone."""
    losses_agree: bool | None
    """None: without labels, or see ``loss_note``."""
    loss_note: str
    """Why there is nothing to say of losses, where that is not for want of labels."""
    gradient_difference: float | None
    """The largest difference between the gradients of the packed batch and of its segments alone, relative to the
    largest gradient; None without labels, or where the attention has no backward here."""
    gradients_agree: bool | None
    gradient_note: str
    """Why there is nothing to say of gradients, where that is not for want of labels."""
    label_fault: str
    """Empty, or what is wrong with the labels for a model that shifts them itself."""
    model: str
    attention: str
    """transformers' name of the attention implementation; empty for other models."""
    dtype: str
    """In which the model ran."""
    segments: int
    tokens: int
    boundaries: str
    """Where the segments' lengths came from: ``seq_lengths``, ``cu_seq_lens_q`` or ``position_ids``."""
    unused: tuple[str, ...]
    """Keys of the batch that the model's forward does not take."""
    weights: str = ""
    """Empty if they are the model's own; else which of them are random."""

    @property
    def ok(self) -> bool:
        """Isolated, with the losses and gradients of the documents alone as far as they could be compared."""
        agree = self.losses_agree is not False and self.gradients_agree is not False
        trains = self.loss is not None or not self.loss_note
        return self.isolates is True and agree and trains and not self.label_fault

    def to_json(self) -> dict[str, Any]:
        """The report as plain values, under the names above, and ``ok``."""
        values = {"ok": self.ok, **asdict(self), "leaks": [asdict(leak) for leak in self.leaks]}
        # JSON has no infinity.
        return {
            name: None if isinstance(value, float) and not isfinite(value) else value for name, value in values.items()
        }

    def __str__(self) -> str:
        wrong = "LEAKS" if self.leaks else "does not isolate"
        verdict = {True: "isolates", False: wrong, None: "cannot tell"}[self.isolates]
        what = f"{self.model}{', ' + self.attention if self.attention else ''}, {self.dtype}"
        text = f"{verdict}: {what}: {self.segments} segments, largest difference {self.largest_difference:.1e}"
        text += f", a leak would show as {self.control:.1e}" if self.isolates else ""
        return f"{text}. {self.cause}" if self.cause else text


def check_isolation(
    model: nn.Module,
    batch: Mapping[str, Any],
    *,
    seq_lengths: Sequence[int] | Tensor | None = None,
    longest: int | None = None,
) -> IsolationReport:
    """Find out whether ``model`` keeps the segments of ``batch`` apart.

    Each segment's logits are compared with those of the segment alone; the tokens of segments are replaced, one after
    the other (of more than 8, many at once, so that every pair is looked at), and the others' logits must not move;
    loss and gradients are compared with those of the segments alone. As a positive control the same model must be seen
    leaking under a mask of ones, else the verdict is None. It is None, too, for what could be rounding or a leak.

    The model runs in evaluation mode and in float32 (float64 if that is its own); where its kernel refuses that, and
    where the model is none of transformers' (it may choose its kernel by the dtype), in its own dtype. It is left as it
    was.

    Args:
        model: called with the batch as keywords; returns logits [B, L, V], first of a tuple, or as ``.logits``.
        batch: what training would pass, with nothing added: ``input_ids`` [B, L], and whichever of ``position_ids``,
            ``labels``, ``attention_mask``, the varlen keys, ``seq_idx``, ``use_cache`` and others it passes.
        seq_lengths: the length of each segment, row after row, none across two rows. By default the batch's own
            ``seq_lengths``, or its ``cu_seq_lens_q``, or else the restarts of its ``position_ids``.
        longest: the longest segment of the whole dataset, where the batch holds beginnings of segments only: nor
            may the others move when a segment reaches such positions.

    Raises:
        Misuse: the batch does not say where its segments are, or they do not fit it; or it has a mask that would
            crash the attention.
        PacktoolError: the model does not run on the batch.
    """
    given, boundaries, unused = read_batch(model, batch, seq_lengths)
    if given.mask is not None and given.mask.dim() == 4 and takes_no_dense_mask(model):
        raise Misuse("check_isolation: flex_attention takes no 4-D attention_mask and may crash on one; leave it out")
    with undisturbed(model), precision(model, given) as dtype:
        forward = forward_of(model)
        seen = _look(model, given, forward, dtype, longest)
        isolates, cause = _verdict(model, given, forward, seen)
        loss = compare_losses(model, given, seen.loss_alone, dtype)
        gradients = compare_gradients(model, given, dtype)
        return IsolationReport(
            isolates=isolates,
            cause=cause or loss.fault or gradients.fault or (loss.note if loss.packed is None else ""),
            largest_difference=seen.alone,
            influence=seen.influence.largest,
            control=seen.control,
            tolerance=seen.tolerance,
            leaks=tuple(each for each in seen.influence.leaks if each.difference > seen.tolerance),
            loss=loss.packed,
            loss_alone=loss.alone,
            losses_agree=loss.agree,
            loss_note=loss.note,
            gradient_difference=gradients.difference,
            gradients_agree=gradients.agree,
            gradient_note=gradients.note,
            label_fault=loss.label_fault,
            model=type(model).__name__,
            attention=attention_of(model),
            dtype=str(dtype).removeprefix("torch."),
            segments=len(given.segments),
            tokens=given.ids.numel(),
            boundaries=boundaries,
            unused=unused,
        )


# -- looking -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Evidence:
    """What the logits say."""

    finite: bool
    exact: bool
    """In float32, where rounding is far below what a leak looks like."""
    scale: float
    """The largest logit."""
    step: float
    """The precision of the dtype, relative to 1."""
    noise: float
    """How far equal passes may differ."""
    influence: Influence
    by_position: float
    """The largest change when the longest segment is at other positions."""
    control: float
    alone: float
    """The largest difference between a segment in the pack and alone."""
    loss_alone: float
    """Summed over the trained tokens of all segments."""

    @property
    def tolerance(self) -> float:
        """A movement up to it is rounding."""
        return self.noise + min(_ROUNDING * self.step * self.scale, _FAINT * self.control)

    def is_proven(self, moved: float) -> bool:
        """Whether a movement above the tolerance cannot be rounding either.

        Where nothing moves backward, nothing rounds. Else rounding is of the size of what does; or it is deep
        rounding, which in half precision can be as large as a leak.
        """
        deep = min(_DEEP_ROUNDING * self.step * self.scale, _HALF_SHARE_OF_LEAK * max(self.control, self.scale / 10))
        return moved > 10 * max(self.influence.backward - self.noise, 0.0) or moved > self.noise + deep

    @property
    def alone_close(self) -> float:
        """A difference to alone up to it is rounding."""
        deep = min(_DEEP_ROUNDING * self.step, _MOST_DEEP_ROUNDING) * self.scale
        return deep if self.exact else min(deep, _HALF_SHARE_OF_LEAK * self.control)

    @property
    def alone_far(self) -> float:
        """A larger one is none."""
        deep = min(_DEEP_ROUNDING * self.step, _MOST_DEEP_ROUNDING) * self.scale
        return max(deep, (_SHARE_OF_LEAK if self.exact else _HALF_SHARE_OF_LEAK) * self.control)

    @property
    def control_needed(self) -> float:
        """A leak must be larger under the control to be seen."""
        seen = max(self.noise, self.influence.largest)
        return _CONTROL_FACTOR * max(seen, min(_ROUNDING * self.step, _MOST_IN_CONTROL / _CONTROL_FACTOR) * self.scale)


def _look(model: nn.Module, given: Trial, forward: Forward, dtype: torch.dtype, longest: int | None) -> _Evidence:
    packed = forward(given)
    if packed.shape[:2] != given.ids.shape:
        raise PacktoolError(f"the logits have shape {tuple(packed.shape)}; expected one row of them for each token")
    coarser = packed.dtype if packed.dtype.itemsize < dtype.itemsize else dtype
    alone, loss = 0.0, 0.0
    for segment in given.segments:
        single = given.alone(segment)
        logits = forward(single)
        alone = max(alone, difference(packed[segment.place], logits[0]))
        if single.labels is not None:
            loss += float(summed_loss(logits, single.labels))
    return _Evidence(
        finite=bool(torch.isfinite(packed).all()),
        exact=coarser.itemsize >= torch.float32.itemsize,
        scale=float(packed.abs().max()),
        step=torch.finfo(coarser).eps,
        noise=4 * difference(packed, forward(given)),
        influence=find_influence(forward, given, packed),
        by_position=_by_position(model, given, forward, packed, longest),
        control=largest_when_open(model, forward, given),
        alone=alone,
        loss_alone=loss,
    )


def _by_position(model: nn.Module, given: Trial, forward: Forward, packed: Tensor, longest: int | None) -> float:
    """How far others move when the longest segment has small positions only, or such as one of ``longest`` tokens."""
    most = max(given.segments, key=lambda each: each.stop - each.start)
    length = most.stop - most.start
    if given.positions is None or length < 3:
        return 0.0
    # Its first token stays where it is, which may be what tells a model of the boundary.
    reached = torch.arange(length)
    probes = {1: reached.clamp(max=1)}
    if longest is not None and longest > length:
        probes[longest - 1] = torch.where(reached > 0, reached + longest - length, 0)
    moved = 0.0
    for last, positions in probes.items():
        try:
            logits = forward(given.with_positions_of(most, positions))
        except PacktoolError as error:
            raise PacktoolError(
                f"{type(model).__name__} does not take position {last:,}, which the longest segment has: {error}"
            ) from error
        others = (each for each in given.segments if each is not most)
        moved = max([moved, *(difference(logits[each.place], packed[each.place]) for each in others)])
    return moved


def _verdict(model: nn.Module, given: Trial, forward: Forward, seen: _Evidence) -> tuple[bool | None, str]:
    """Whether the segments are isolated, and if not so, why."""
    if not seen.finite:
        return None, "the logits are not finite, so nothing can be compared"
    moved = seen.influence.largest
    if moved > seen.tolerance:
        if seen.is_proven(moved) or seen.alone > seen.alone_far:
            return False, leak_cause(model, forward, given, seen.influence.leaks[0], seen.tolerance)
        return None, (
            f"changing a segment moves others by {moved:.1e}, in both directions: more than nothing, and no more than "
            f"rounding may where layers sort the tokens of a whole row (experts); {_advice(seen)}"
        )
    if seen.by_position > seen.tolerance and seen.is_proven(seen.by_position):
        return False, (
            "segments come out otherwise beside a longer one: something depends on the largest position in the row "
            "(rotary positions that scale with it)"
        )
    if seen.alone > seen.alone_far:
        return False, difference_cause(given)
    if seen.alone > seen.alone_close or seen.by_position > seen.tolerance:
        return None, (
            f"no segment sees another, but one differs by {max(seen.alone, seen.by_position):.1e} from itself alone: "
            f"more than rounding should, and less than a leak; {_advice(seen)}"
        )
    if len(given.segments) < 2:
        return None, "the batch has one segment, into which nothing can leak; take one with several"
    if seen.control <= seen.control_needed:
        return None, (
            "under a mask of ones, where segments may see each other, no leak is seen either: this check cannot see "
            "one in this model"
        )
    return True, ""


def _advice(seen: _Evidence) -> str:
    if seen.exact:
        return "model.double() would tell, where the attention takes it"
    return "an attention that takes float32 would tell"
