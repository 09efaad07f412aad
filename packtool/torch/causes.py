"""Why a model leaks: takes a trial in which it does, and tries what would mend it.

Gives one line for the person who has to change something. What cannot be tried is told from the model's parts.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from packtool.errors import PacktoolError
from packtool.torch.influence import Leak, find_leaks, watch
from packtool.torch.trial import VARLEN_KEYS, Forward, Trial, difference, takes_no_dense_mask


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
    if not _restarts(given):
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
    others = [number for number in range(len(changed.segments)) if number != leak.target]
    if watch(forward, changed, packed, others)[leak.target] > tolerance:
        return False
    # Unmoved, and as it is alone but for rounding, which is far below what the leak did.
    target = changed.segments[leak.target]
    return difference(packed[target.place], forward(changed.alone(target))[0]) < leak.difference / 10


def _remedies(model: nn.Module, given: Trial) -> Iterator[tuple[str, Trial]]:
    """What may be wrong, each with the trial in which it is not; those that change least first."""
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
    if mask is not None and mask.dim() == 4:
        yield (
            "attention_mask lets tokens of one segment look into another; give 0 only where a token may look, and the "
            f"lowest number of {str(dtype).removeprefix('torch.')} elsewhere, as VarlenCollator(dense=True) does",
            given.with_block_mask(dtype),
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
    if one_row and len(given.varlen) == len(VARLEN_KEYS) and not _has_own_varlen(given):
        text = (
            "the varlen keys are not those of the segments: cu_seq_lens_q and cu_seq_lens_k are the offset of every "
            "segment, then the number of tokens; max_length_q and max_length_k at least the longest segment"
        )
        yield text + besides, bare.with_varlen()
    if given.positions is None:
        text = "position_ids are missing; pass them, 0, 1, 2, ... anew for every segment"
        yield text + besides, bare.with_restarting_positions()
    elif not _restarts(given):
        text = "position_ids do not restart at every segment; they are 0, 1, 2, ... anew for each"
        yield text + besides, bare.with_restarting_positions()
    if not one_row:
        text = (
            "several rows at once: this attention looks at positions in one row only; "
            "flatten the packs into one row with the four varlen keys, as VarlenCollator does"
        )
        yield text + besides, bare.flattened()
    else:
        if not given.varlen:
            text = f"the varlen keys are missing; pass {', '.join(VARLEN_KEYS)}, all four"
            yield text + besides, bare.with_varlen()
        both = bare.with_restarting_positions().with_varlen()
        if not (_restarts(given) and _has_own_varlen(given)):
            text = "position_ids do not restart at every segment, and the four varlen keys are missing or not those of "
            yield f"{text}the segments; pass both{besides}", both
        if given.seq_idx is None:
            text = "it has layers that need seq_idx; pass it, and the varlen keys"
            yield text + besides, both.with_seq_idx()
    if takes_no_dense_mask(model):
        return
    old = _old_transformers()
    whose = f"transformers {old}" if old else "the model"
    since = " (4.52 and newer do)" if old else ""
    text = f"{whose} does not make its masks from position_ids{since}; a 4-D float block mask isolates it, "
    yield text + "which costs L x L", replace(bare, varlen={}).with_block_mask(dtype)


def _restarts(given: Trial) -> bool:
    expected = given.with_restarting_positions().positions
    assert expected is not None
    return given.positions is not None and torch.equal(expected, given.positions.expand_as(expected))


def _has_own_varlen(given: Trial) -> bool:
    """Whether the four keys are given and mean the trial's segments; offsets repeated at the end mean nothing."""
    if len(given.varlen) < len(VARLEN_KEYS):
        return False
    ends, longest = given.with_varlen().varlen["cu_seq_lens_q"], max(given.lengths)
    offsets = (torch.as_tensor(given.varlen[name], device=ends.device) for name in VARLEN_KEYS[:2])
    fit = all(torch.equal(torch.unique_consecutive(each).to(ends.dtype), ends) for each in offsets)
    return fit and all(int(given.varlen[name]) >= longest for name in VARLEN_KEYS[2:])


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
