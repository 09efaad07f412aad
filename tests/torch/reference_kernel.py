"""A CPU kernel in place of FlashAttention, behind transformers' own code that decides what FlashAttention is given.

Registered under a name of its own. The kernel is slow and obvious: one softmax a segment.
"""

import importlib
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

NAME = "reference_varlen"
"""Without "flash" in it, with which transformers would look for the real package."""


def varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    deterministic: bool = False,
) -> Tensor:
    """Segment by segment; checks what the real kernel only assumes."""
    assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
    assert torch.equal(cu_seqlens_q, cu_seqlens_k)
    assert cu_seqlens_q.is_contiguous()
    assert cu_seqlens_q[0] == 0
    assert cu_seqlens_q[-1] == len(q)
    assert int(cu_seqlens_q.diff().max()) <= min(int(max_seqlen_q), int(max_seqlen_k))
    assert not any((softcap, dropout_p, deterministic))
    bounds = cu_seqlens_q.tolist()
    parts = [_one(q[a:b], k[a:b], v[a:b], softmax_scale, causal, window_size) for a, b in itertools.pairwise(bounds)]
    return torch.cat(parts)


def dense(q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, **options: Any) -> Tensor:
    """[B, L, H, D]: every row is one segment, whatever is in it."""
    del dropout_p
    causal, window = options["causal"], options.get("window_size", (-1, -1))
    return torch.stack([_one(*row, options["softmax_scale"], causal, window) for row in zip(q, k, v, strict=True)])


def _one(q: Tensor, k: Tensor, v: Tensor, scale: float | None, causal: bool, window: tuple[int, int]) -> Tensor:
    k, v = (each.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for each in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    i, j = torch.meshgrid(torch.arange(len(q)), torch.arange(len(q)), indexing="ij")
    seen = (j <= i) if causal else torch.ones_like(i, dtype=torch.bool)
    if window[0] >= 0:
        seen &= i - j <= window[0]
    return torch.einsum("hij,jhd->ihd", scores.masked_fill(~seen, float("-inf")).softmax(-1), v)


@contextmanager
def registered() -> Iterator[str]:
    """The name of an attention implementation that goes the way of FlashAttention and ends in this kernel."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.flash_attention import flash_attention_forward
    from transformers.masking_utils import flash_attention_mask

    flash = importlib.import_module("transformers.modeling_flash_attention_utils")
    functions = (dense, varlen, None, flash._pad_input, flash._unpad_input)
    loaded = functions, (flash._lazy_define_process_function(varlen), dict)
    AttentionInterface.register(NAME, flash_attention_forward)
    AttentionMaskInterface.register(NAME, flash_attention_mask)
    with patch.object(flash, "lazy_import_flash_attention", lambda *_, **__: loaded):
        yield NAME
