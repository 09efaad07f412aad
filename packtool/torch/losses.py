"""The signal that a packed batch trains with: takes a model and a trial, holds loss and gradients against those of its
segments alone.

Says in numbers and in a line how far they agree. Knows nothing of who sees whom.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from packtool.contract import IGNORED
from packtool.torch.trial import Trial, difference, first_line, logits_of, run

_LOSS_TOLERANCE = 1e-4
_GRADIENT_TOLERANCE = 1e-3
# In float16 and bfloat16 logits are rounded by up to a percent. Between the two bounds nothing is said.
_HALF_CLOSE = 0.01
_HALF_FAR = 0.05
_HALF_GRADIENTS_CLOSE = 0.02
_HALF_GRADIENTS_FAR = 0.2
_MOST_PARAMETERS = 2**28
"""In a larger model gradients are compared for vectors alone (norms and biases), which every layer has."""


@dataclass(frozen=True, slots=True)
class Losses:
    """The loss of the packed batch beside that of its segments."""

    packed: float | None = None
    alone: float | None = None
    agree: bool | None = None
    note: str = ""
    """Why there is nothing to say, where that is not for want of labels."""
    label_fault: str = ""

    @property
    def fault(self) -> str:
        """What is wrong, in a line; empty if nothing is known to be."""
        if self.label_fault:
            return self.label_fault
        if self.agree is False:
            return "the loss of the packed batch is not that of its documents alone"
        return ""


@dataclass(frozen=True, slots=True)
class Gradients:
    """The gradients of the packed batch beside those of its segments."""

    difference: float | None = None
    agree: bool | None = None
    note: str = ""
    """Why there is nothing to say, where that is not for want of labels."""

    @property
    def fault(self) -> str:
        """What is wrong, in a line; empty if nothing is known to be."""
        return "the gradients of the packed batch are not those of its documents alone" if self.agree is False else ""


def summed_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Of one segment, [1, n, V] and [1, n]: each label is predicted from the token before it."""
    return functional.cross_entropy(logits[0, :-1].float(), labels[0, 1:].long(), ignore_index=IGNORED, reduction="sum")


def compare_losses(model: nn.Module, given: Trial, summed_alone: float, dtype: torch.dtype) -> Losses:
    """The model's own loss of the packed batch, and the mean of ``summed_alone``, that of its segments alone."""
    if given.labels is None or not (count := _trained(given)):
        return Losses()
    try:
        with torch.no_grad():
            output = run(model, given, labels=given.labels)
            loss, by_model = _loss(output, given, count)
            again = _loss_by_hand(output, given, count)
    except Exception as error:
        return Losses(note=f"given labels, the model does not run: {first_line(error)}")
    packed, alone = float(loss), summed_alone / count
    label_fault = _label_fault(given) if by_model else ""
    apart = abs(packed - alone) / max(1.0, abs(alone))
    agree: bool | None = apart <= _LOSS_TOLERANCE
    note = ""
    if _is_half(dtype):
        # Rounding hides how the loss is put together in the comparison with other logits, not in that with the same.
        same = again is None or abs(packed - float(again)) <= _HALF_CLOSE / 10 * max(1.0, abs(alone))
        agree = same and apart <= _HALF_FAR
        if agree and apart > _HALF_CLOSE:
            agree, note = None, f"in {dtype} losses {apart:.1e} apart may be the same or not"
    return Losses(packed, alone, agree, note, label_fault)


def compare_gradients(model: nn.Module, given: Trial, dtype: torch.dtype) -> Gradients:
    """The gradients of the packed batch and those of its segments alone, as their difference over the largest."""
    if given.labels is None or not (count := _trained(given)):
        return Gradients()
    parameters = [each for each in model.parameters() if each.requires_grad and each.is_floating_point()]
    if sum(each.numel() for each in parameters) > _MOST_PARAMETERS:
        parameters = [each for each in parameters if each.dim() == 1]
    if not parameters:
        return Gradients(note="no parameter takes gradients")
    try:
        with torch.enable_grad():
            loss, _ = _loss(run(model, given, labels=given.labels), given, count)
            packed = _gradients(loss, parameters)
            alone = [torch.zeros_like(each) for each in parameters]
            for each in given.segments:
                single = given.alone(each)
                if single.labels is None or not bool((single.labels[0, 1:] != IGNORED).any()):
                    continue
                loss = summed_loss(logits_of(run(model, single)), single.labels) / count
                for total, gradient in zip(alone, _gradients(loss, parameters), strict=True):
                    total += gradient
    except Exception as error:
        # An attention without a backward on this device, or no memory for it.
        return Gradients(note=first_line(error))
    largest = max(float(each.abs().max()) for each in alone)
    apart = max(difference(a, b) for a, b in zip(packed, alone, strict=True))
    relative = apart / largest if largest else apart
    if not _is_half(dtype):
        return Gradients(relative, relative <= _GRADIENT_TOLERANCE)
    if _HALF_GRADIENTS_CLOSE < relative <= _HALF_GRADIENTS_FAR:
        return Gradients(relative, None, f"in {dtype} gradients {relative:.1e} apart may be the same or not")
    return Gradients(relative, relative <= _HALF_GRADIENTS_CLOSE)


def _is_half(dtype: torch.dtype) -> bool:
    return dtype.itemsize < torch.float32.itemsize


def _trained(given: Trial) -> int:
    """Labels that something inside their segment predicts."""
    assert given.labels is not None
    return sum(int((given.labels[each.place][1:] != IGNORED).sum()) for each in given.segments)


def _loss(output: object, given: Trial, count: int) -> tuple[Tensor, bool]:
    """The mean loss of the packed batch, and whether the model computed it."""
    loss = getattr(output, "loss", None)
    if isinstance(loss, Tensor):
        return loss, True
    by_hand = _sum_by_hand(logits_of(output), given)
    return by_hand / count, False


def _loss_by_hand(output: object, given: Trial, count: int) -> Tensor | None:
    """The same from the logits, if the model gives them beside the loss."""
    logits = getattr(output, "logits", None)
    if not isinstance(logits, Tensor) or logits.shape[:2] != given.ids.shape:
        return None
    return _sum_by_hand(logits, given) / count


def _sum_by_hand(logits: Tensor, given: Trial) -> Tensor:
    assert given.labels is not None
    sums = [
        summed_loss(logits[each.row : each.row + 1, each.start : each.stop], given.labels[each.place][None])
        for each in given.segments
    ]
    return torch.stack(sums).sum()


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


def _gradients(loss: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """As ``backward`` would add them up, but the parameters' own ``grad`` stays as it is."""
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [torch.zeros_like(each) if one is None else one for each, one in zip(parameters, found, strict=True)]
