"""Does a model keep packed documents apart? Takes a model and a batch as training gives it, and finds out by trying.

Gives a report with a verdict, what leaked into what, and the likely cause. Trusts no list of models and no version
number: it compares numbers, and says "cannot tell" where the comparison could not have shown a leak.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from packtool.contract import IGNORED
from packtool.errors import PacktoolError
from packtool.torch.causes import difference_cause, leak_cause
from packtool.torch.trial import (
    Forward,
    Leak,
    Segment,
    Trial,
    attention_of,
    difference,
    find_leaks,
    first_line,
    forward_of,
    logits_of,
    precision,
    read_batch,
    run,
    undisturbed,
)

MOST_PERTURBED = 8
"""So many segments are changed, one at a time, to see who notices; all are compared with themselves alone."""

# Changing other tokens leaves the shapes as they are, so an isolated segment comes out the same to the last bit, but
# for layers that sort tokens of the whole row (experts). In units of the dtype's precision, of the largest logit:
_NOISE = 16
_MOST_NOISE = 0.02
# Packed and alone have other shapes, hence other orders of summation, and errors grow with depth.
_ALONE_NOISE = 512
_MOST_ALONE_NOISE = 0.1
# A difference to alone that is no rounding is of the size of a leak.
_SHARE_OF_CONTROL = 0.01
_CONTROL_FACTOR = 5
"""The control must stand out from the noise by it."""
_LOSS_TOLERANCE = 1e-4
_GRADIENT_TOLERANCE = 1e-3
_HALF_TOLERANCE = 0.05
"""For losses and gradients in float16 and bfloat16."""
_MOST_PARAMETERS = 2**28
"""In a larger model gradients are compared for vectors alone (norms and biases), which every layer has."""


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
    """The largest change of a logit when another segment's tokens are changed."""
    control: float
    """The same under a mask of ones, where segments do see each other: how a leak of this model looks."""
    tolerance: float
    """An influence above it is a leak."""
    leaks: tuple[Leak, ...]
    """The largest first."""
    loss: float | None
    """Of the packed batch, as the model computes it; None without labels."""
    loss_alone: float | None
    """The mean over all trained tokens of the losses of each segment alone."""
    losses_agree: bool | None
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

    @property
    def ok(self) -> bool:
        """Isolated, with the losses and gradients of the documents alone as far as they could be compared."""
        agree = self.losses_agree is not False and self.gradients_agree is not False
        return self.isolates is True and agree and not self.label_fault

    def to_json(self) -> dict[str, Any]:
        """The report as plain values, under the names above, and ``ok``."""
        values = {"ok": self.ok, **asdict(self), "leaks": [asdict(leak) for leak in self.leaks]}
        # JSON has no infinity.
        return {
            name: None if isinstance(value, float) and not isfinite(value) else value for name, value in values.items()
        }

    def __str__(self) -> str:
        verdict = {True: "isolates", False: "LEAKS", None: "cannot tell"}[self.isolates]
        what = f"{self.model}{', ' + self.attention if self.attention else ''}, {self.dtype}"
        text = f"{verdict}: {what}: {self.segments} segments, largest difference {self.largest_difference:.1e}"
        text += f", a leak would show as {self.control:.1e}" if self.isolates else ""
        return f"{text}. {self.cause}" if self.cause else text


def check_isolation(
    model: nn.Module, batch: Mapping[str, Any], *, seq_lengths: Sequence[int] | Tensor | None = None
) -> IsolationReport:
    """Find out whether ``model`` keeps the segments of ``batch`` apart.

    Each segment's logits are compared with those of the segment alone; the tokens of one segment after the other are
    replaced, and the others' logits must not move; loss and gradients are compared with those of the segments alone. As
    a positive control the same model must be seen leaking under a mask of ones, else the verdict is None.

    The model runs in evaluation mode and in float32; where its kernel refuses that, and where the model is none of
    transformers' (it may choose its kernel by the dtype), in its own dtype. It is left as it was.

    Args:
        model: called with the batch as keywords; returns logits [B, L, V], first of a tuple, or as ``.logits``.
        batch: what training would pass, with nothing added: ``input_ids`` [B, L], and whichever of ``position_ids``,
            ``labels``, ``attention_mask``, the varlen keys, ``seq_idx``, ``use_cache`` and others it passes.
        seq_lengths: the length of each segment, row after row, none across two rows. By default the batch's own
            ``seq_lengths``, or its ``cu_seq_lens_q``, or else the restarts of its ``position_ids``.

    Raises:
        Misuse: the batch does not say where its segments are, or they do not fit it.
        PacktoolError: the model does not run on the batch.
    """
    given, boundaries, unused = read_batch(model, batch, seq_lengths)
    with undisturbed(model), precision(model, given) as dtype:
        forward = forward_of(model)
        seen = _look(model, given, forward, dtype)
        isolates, cause = _verdict(model, given, forward, seen)
        loss = _compare_losses(model, given, seen, dtype)
        gradients = _compare_gradients(model, given, dtype)
        return IsolationReport(
            isolates=isolates,
            cause=cause or loss.fault or gradients.fault,
            largest_difference=seen.alone,
            influence=seen.influence,
            control=seen.control,
            tolerance=seen.tolerance,
            leaks=seen.leaks,
            loss=loss.packed,
            loss_alone=loss.alone,
            losses_agree=loss.agree,
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
    tolerance: float
    """A larger influence is a leak."""
    leaks: tuple[Leak, ...]
    """Above the tolerance, the largest first."""
    influence: float
    control: float
    alone: float
    """The largest difference between a segment in the pack and alone."""
    alone_tolerance: float
    loss_alone: float
    """Summed over the trained tokens of all segments."""


def _look(model: nn.Module, given: Trial, forward: Forward, dtype: torch.dtype) -> _Evidence:
    packed = forward(given)
    if packed.shape[:2] != given.ids.shape:
        raise PacktoolError(f"the logits have shape {tuple(packed.shape)}; expected one row of them for each token")
    step = torch.finfo(packed.dtype if packed.dtype.itemsize < dtype.itemsize else dtype).eps
    scale = float(packed.abs().max())
    repeated = difference(packed, forward(given))
    tolerance = min(_NOISE * step, _MOST_NOISE) * scale + 4 * repeated

    moved = find_leaks(forward, given, packed, _spread(given.segments))
    control = _control(model, forward, given)
    alone, loss = 0.0, 0.0
    for segment in given.segments:
        single = given.alone(segment)
        logits = forward(single)
        alone = max(alone, difference(packed[segment.place], logits[0]))
        if single.labels is not None:
            loss += float(_summed_loss(logits, single.labels))
    return _Evidence(
        finite=bool(torch.isfinite(packed).all()),
        tolerance=tolerance,
        leaks=tuple(sorted((each for each in moved if each.difference > tolerance), key=lambda each: -each.difference)),
        influence=max((each.difference for each in moved), default=0.0),
        control=control,
        alone=alone,
        alone_tolerance=max(min(_ALONE_NOISE * step, _MOST_ALONE_NOISE) * scale, _SHARE_OF_CONTROL * control),
        loss_alone=loss,
    )


def _verdict(model: nn.Module, given: Trial, forward: Forward, seen: _Evidence) -> tuple[bool | None, str]:
    """Whether the segments are isolated, and if not so, why."""
    if not seen.finite:
        return None, "the logits are not finite, so nothing can be compared"
    if seen.leaks:
        return False, leak_cause(model, forward, given, seen.leaks[0], seen.tolerance)
    if seen.alone > seen.alone_tolerance:
        return False, difference_cause(given)
    if len(given.segments) < 2:
        return None, "the batch has one segment, into which nothing can leak; take one with several"
    if seen.control <= _CONTROL_FACTOR * seen.tolerance:
        return None, (
            "under a mask of ones, where segments may see each other, no leak is seen either: this check cannot see "
            "one in this model"
        )
    return True, ""


def _spread(segments: Sequence[Segment]) -> list[int]:
    """At most ``MOST_PERTURBED`` of the segments' numbers, evenly spread, the first among them."""
    count = min(len(segments), MOST_PERTURBED)
    return [number * len(segments) // count for number in range(count)]


def _control(model: nn.Module, forward: Forward, given: Trial) -> float:
    """The largest influence of one segment on another where they are meant to see each other."""
    most = 0.0
    for open_to_all in _controls(model, given):
        try:
            packed = forward(open_to_all)
            leaks = find_leaks(forward, open_to_all, packed, _spread(given.segments))
        except PacktoolError:
            continue  # this model does not take such a mask; another control may do
        most = max((leak.difference for leak in leaks), default=0.0)
        if most > 0:
            break
    return most


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


# -- loss and gradients ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Losses:
    packed: float | None = None
    alone: float | None = None
    agree: bool | None = None
    label_fault: str = ""

    @property
    def fault(self) -> str:
        if self.label_fault:
            return self.label_fault
        if self.agree is False:
            return "the loss of the packed batch is not that of its documents alone"
        return ""


@dataclass(frozen=True, slots=True)
class _Gradients:
    difference: float | None = None
    agree: bool | None = None
    note: str = ""

    @property
    def fault(self) -> str:
        return "the gradients of the packed batch are not those of its documents alone" if self.agree is False else ""


def _summed_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Of one segment, [1, n, V] and [1, n]: each label is predicted from the token before it."""
    return functional.cross_entropy(logits[0, :-1].float(), labels[0, 1:].long(), ignore_index=IGNORED, reduction="sum")


def _trained(given: Trial) -> int:
    """Labels that something inside their segment predicts."""
    assert given.labels is not None
    return sum(int((given.labels[each.place][1:] != IGNORED).sum()) for each in given.segments)


def _compare_losses(model: nn.Module, given: Trial, seen: _Evidence, dtype: torch.dtype) -> _Losses:
    if given.labels is None or not (count := _trained(given)):
        return _Losses()
    with torch.no_grad():
        packed, by_model = _packed_loss(model, given, count)
    alone = seen.loss_alone / count
    tolerance = _LOSS_TOLERANCE if dtype == torch.float32 else _HALF_TOLERANCE
    agree = abs(float(packed) - alone) <= tolerance * max(1.0, abs(alone))
    return _Losses(float(packed), alone, agree, _label_fault(given) if by_model else "")


def _packed_loss(model: nn.Module, given: Trial, count: int) -> tuple[Tensor, bool]:
    """The mean loss of the packed batch, and whether the model computed it."""
    assert given.labels is not None
    output = run(model, given, labels=given.labels)
    loss = getattr(output, "loss", None)
    if isinstance(loss, Tensor):
        return loss, True
    logits = logits_of(output)
    sums = [
        _summed_loss(logits[each.row : each.row + 1, each.start : each.stop], given.labels[each.place][None])
        for each in given.segments
    ]
    return torch.stack(sums).sum() / count, False


def _label_fault(given: Trial) -> str:
    """What is wrong with labels for a model that shifts them itself."""
    labels = given.labels
    assert labels is not None
    starts = [each for each in given.segments if int(labels[each.row, each.start]) != IGNORED]
    shifted = same = 0
    for each in given.segments:
        ids, own = given.ids[each.place], labels[each.place]
        shifted += int((own[:-1] == ids[1:]).sum())
        same += int((own == ids).sum())
    if shifted > same:
        return "the labels are shifted already, and the model shifts them again; give them unshifted"
    if starts:
        return (
            f"the first token of {len(starts)} segments has a label, which the document before it would have to "
            f"predict; it must be {IGNORED}"
        )
    return ""


def _compare_gradients(model: nn.Module, given: Trial, dtype: torch.dtype) -> _Gradients:
    if given.labels is None or not (count := _trained(given)):
        return _Gradients()
    parameters = [each for each in model.parameters() if each.requires_grad and each.is_floating_point()]
    if sum(each.numel() for each in parameters) > _MOST_PARAMETERS:
        parameters = [each for each in parameters if each.dim() == 1]
    if not parameters:
        return _Gradients(note="no parameter takes gradients")
    try:
        with torch.enable_grad():
            loss, _ = _packed_loss(model, given, count)
            packed = _gradients(loss, parameters)
            alone = [torch.zeros_like(each) for each in parameters]
            for each in given.segments:
                single = given.alone(each)
                if single.labels is None or not bool((single.labels[0, 1:] != IGNORED).any()):
                    continue
                loss = _summed_loss(logits_of(run(model, single)), single.labels) / count
                for total, gradient in zip(alone, _gradients(loss, parameters), strict=True):
                    total += gradient
    except (RuntimeError, NotImplementedError) as error:
        # An attention without a backward on this device, or no memory for it.
        return _Gradients(note=first_line(error))
    largest = max(float(each.abs().max()) for each in alone)
    apart = max(difference(a, b) for a, b in zip(packed, alone, strict=True))
    relative = apart / largest if largest else apart
    tolerance = _GRADIENT_TOLERANCE if dtype == torch.float32 else _HALF_TOLERANCE
    return _Gradients(relative, relative <= tolerance)


def _gradients(loss: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """As ``backward`` would add them up, but the parameters' own ``grad`` stays as it is."""
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [torch.zeros_like(each) if one is None else one for each, one in zip(parameters, found, strict=True)]
