"""Why a model leaks: takes a trial in which it does, and tries what would mend it.

Gives one line for the person who has to change something. What cannot be tried is told from the model's parts.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from packtool.errors import PacktoolError
from packtool.torch.trial import VARLEN_KEYS, Forward, Leak, Trial, difference, find_leaks


def leak_cause(model: nn.Module, forward: Forward, given: Trial, leak: Leak, tolerance: float) -> str:
    """What changes the verdict if it is changed, by trying; else what the model's parts suggest."""
    for text, changed in _remedies(model, given):
        try:
            mended = _is_mended(forward, changed, leak, tolerance)
        except PacktoolError:
            continue  # the model does not take it that way
        if mended:
            return text
    if recurrent := _recurrent_layers(model):
        return (
            f"it has layers that carry a state from token to token ({recurrent}), which need seq_idx and "
            "cu_seq_lens, and kernels that use them; without those, do not train it on packs"
        )
    return "the model does not take the boundaries it is given; do not train it on packs with this attention"


def difference_cause(given: Trial) -> str:
    """Why segments differ from themselves alone although none sees another."""
    if given.positions is None:
        return "no segment sees another, but each differs from itself alone: position_ids are missing"
    expected = given.with_restarting_positions().positions
    if expected is not None and not torch.equal(expected, given.positions.expand_as(expected)):
        return (
            "no segment sees another, but each differs from itself alone: position_ids do not restart at every segment"
        )
    return (
        "no segment sees another, but one differs from itself alone: something depends on the length of the row "
        "(rotary positions that scale with it, or a mask that adds to the scores)"
    )


def _is_mended(forward: Forward, changed: Trial, leak: Leak, tolerance: float) -> bool:
    packed = forward(changed)
    if any(each.difference > tolerance for each in find_leaks(forward, changed, packed, [leak.source])):
        return False
    # Unmoved, and as it is alone but for rounding, which is far below what the leak did.
    target = changed.segments[leak.target]
    return difference(packed[target.place], forward(changed.alone(target))[0]) < leak.difference / 10


def _remedies(model: nn.Module, given: Trial) -> Iterator[tuple[str, Trial]]:
    dtype = next(model.parameters()).dtype
    mask, cached = given.mask, _caches(model, given)
    if mask is not None and mask.dim() == 2:
        bare = replace(given, mask=None)
        text = "attention_mask is given: with a 2-D mask the model attends across documents, even of ones; leave it out"
        yield text, bare
        if cached:
            yield f"{text}, and pass use_cache=False", bare.with_option(use_cache=False)
    elif mask is not None and mask.dtype == torch.bool:
        low = torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)
        yield (
            "attention_mask is a boolean block mask, which this attention adds to the scores as 0 and 1; "
            "give it in float, 0 where a token may look and the lowest number elsewhere",
            replace(given, mask=low),
        )
    if cached:
        yield (
            "the cache is on, and with a cache the model does not look at position_ids; pass use_cache=False",
            given.with_option(use_cache=False),
        )
    bare = replace(given.with_option(use_cache=False) if cached else given, mask=None)
    besides = (", leave attention_mask out" if mask is not None else "") + (", pass use_cache=False" if cached else "")
    one_row = len(given.ids) == 1
    if one_row and 0 < len(given.varlen) < len(VARLEN_KEYS):
        text = f"only some of the four varlen keys are given; pass {', '.join(VARLEN_KEYS)}, all"
        yield text + besides, bare.with_varlen()
    if given.positions is None:
        text = "position_ids are missing; pass them, 0, 1, 2, ... anew for every segment"
        yield text + besides, bare.with_restarting_positions()
    if not one_row:
        text = (
            "several rows at once: this attention looks at positions in one row only; "
            "flatten the packs into one row with the four varlen keys, as VarlenCollator does"
        )
        yield text + besides, bare.flattened()
    elif not given.varlen:
        text = f"the varlen keys are missing; pass {', '.join(VARLEN_KEYS)}, all four"
        yield text + besides, bare.with_varlen()
    if one_row and given.seq_idx is None:
        text = "it has layers that need seq_idx; pass it, and the varlen keys"
        yield text + besides, bare.with_restarting_positions().with_varlen().with_seq_idx()
    old = _old_transformers()
    whose = f"transformers {old}" if old else "the model"
    since = " (4.52 and newer do)" if old else ""
    text = f"{whose} does not make its masks from position_ids{since}; a 4-D float block mask isolates it, "
    yield text + "which costs L x L", replace(bare, varlen={}).with_block_mask(dtype)


def _caches(model: nn.Module, given: Trial) -> bool:
    use = given.others.get("use_cache")
    if use is None:
        use = getattr(getattr(model, "config", None), "use_cache", False)
    return bool(use)


def _recurrent_layers(model: nn.Module) -> str:
    """Names of the classes of layers that mix neighbouring tokens otherwise than by attention; empty if none do."""
    words = ("ssm", "deltanet", "shortconv", "rwkv", "recurrent", "lstm", "gru", "linearattention")
    mixing = {
        type(module).__name__
        for module in model.modules()
        if any(isinstance(child, nn.Conv1d | nn.RNNBase) for child in module.children())
        or any(word in type(module).__name__.lower() for word in words)
    }
    # GPT-2 calls its linear layers Conv1D.
    return ", ".join(sorted(mixing - {"Conv1D", "Conv1d"}))


def _old_transformers() -> str:
    found = sys.modules.get("transformers")
    version = str(getattr(found, "__version__", ""))
    try:
        return version if tuple(int(part) for part in version.split(".")[:2]) < (4, 52) else ""
    except ValueError:
        return ""
