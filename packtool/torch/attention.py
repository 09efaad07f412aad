"""Attention over packed documents: takes queries, keys and values laid end to end and where each document begins.

Gives what each document would get alone, by the fastest kernel at hand. Knows nothing of models or datasets.
"""

import importlib
import inspect
import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from numbers import Integral
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional

from packtool.errors import Misuse
from packtool.torch.collator import MOST_SEGMENTS

Backend = Literal["auto", "flash_attn", "torch", "sdpa"]
Window = tuple[int, int]

_FLASH_ATTN = ("flash_attn", "flash_attn_varlen_func")
_TORCH_VARLEN = ("torch.nn.attention.varlen", "varlen_attn")
_HALF = (torch.float16, torch.bfloat16)
_DTYPES = (*_HALF, torch.float32, torch.float64)
_MAX_HEAD_DIM = 256
_FIRST_CAPABILITY = (8, 0)
"""Of GPUs that run FlashAttention 2."""


def varlen_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    *,
    causal: bool = True,
    window: int | None = None,
    scale: float | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """Scaled dot-product attention within each segment, never across.

    Args:
        q: [T, H, D], the queries of all segments end to end.
        k: [T, K, D], where K divides H: each key head serves H / K neighbouring query heads.
        v: [T, K, D], of q's dtype and device, as k.
        cu_seqlens: int32 [S + 1], contiguous, on q's device: where each segment begins, then T. The last offset may be
            repeated to keep the length fixed.
        max_seqlen: at least the longest segment. A smaller one would make a kernel skip rows silently.
        causal: a token sees only itself and what stands before it in its segment.
        window: a token sees itself and at most ``window - 1`` tokens before it (and behind it, if not causal), as
            ``sliding_window`` means in transformers.
        scale: of the scores; by default 1 / sqrt(D).
        backend: ``"flash_attn"``, the package, and ``"torch"``, torch.nn.attention.varlen, need CUDA and float16 or
            bfloat16. ``"sdpa"`` runs anywhere, with a boolean mask of T x T. ``"auto"`` takes the first that fits.

    Returns:
        [T, H, D], of q's dtype. Gradients flow to q, k and v under every backend.

    Raises:
        Misuse: arguments that do not fit together, or a backend that cannot run them. The values of a cu_seqlens are
            looked at once, not by every layer, and not while a graph is compiled or captured. A change in place by
            torch is noticed; one through ``.data`` or a numpy array of the same memory is not.
    """
    _check_tensors(q, k, v)
    _check_offsets(cu_seqlens, q, max_seqlen)
    if window is not None and (not _is_whole(window) or window < 1):
        raise Misuse(f"varlen_attention: window is {window}; a whole number, at least 1, the token itself, or None")
    call = _Call(q, k, v, cu_seqlens, max_seqlen, causal, window, scale)
    chosen = choose_backend(q, window) if backend == "auto" else backend
    if chosen == "sdpa":
        return _sdpa(call)
    if chosen not in get_args(Backend):
        raise Misuse(f"varlen_attention: no backend {backend!r}; there are {', '.join(get_args(Backend))}")
    if why := _unfit(q):
        raise Misuse(f"varlen_attention: backend {chosen!r} {why}; backend='sdpa' runs anywhere")
    return _flash_attn(call) if chosen == "flash_attn" else _torch_varlen(call)


def choose_backend(q: Tensor, window: int | None = None) -> Backend:
    """The backend that ``"auto"`` stands for with such queries, and such a window."""
    if _unfit(q):
        return "sdpa"
    if not isinstance(_find(*_FLASH_ATTN), str):
        return "flash_attn"
    found = _find(*_TORCH_VARLEN)
    fits = not isinstance(found, str) and (window is None or "window_size" in _parameters(found))
    return "torch" if fits else "sdpa"


def block_mask(cu_seqlens: Tensor, tokens: int, *, causal: bool = True, window: int | None = None) -> Tensor:
    """bool [T, T]: True where the token of the row may see the token of the column.

    Args:
        cu_seqlens: int32 [S + 1], as ``varlen_attention`` takes it.
        tokens: T.
        causal: as in ``varlen_attention``.
        window: as in ``varlen_attention``.
    """
    places = torch.arange(tokens, device=cu_seqlens.device)
    # cu_seqlens [0, 2, 5]: places 0 1 2 3 4 are in segments 0 0 1 1 1. Empty segments own no place.
    segments = torch.bucketize(places, cu_seqlens[1:].to(places.dtype), right=True)
    allowed = segments[:, None] == segments[None, :]
    distance = places[:, None] - places[None, :]
    if causal:
        allowed &= distance >= 0
    if window is not None:
        allowed &= distance.abs() < window
    return allowed


@dataclass(frozen=True, slots=True)
class _Call:
    """The arguments of one call, checked."""

    q: Tensor
    k: Tensor
    v: Tensor
    cu_seqlens: Tensor
    max_seqlen: int
    causal: bool
    window: int | None
    scale: float | None

    @property
    def window_size(self) -> Window:
        """(left, right) as FlashAttention counts them: without the token itself, -1 for no bound."""
        left = -1 if self.window is None else self.window - 1
        return left, 0 if self.causal else left

    @property
    def groups(self) -> int:
        """Query heads for each key head."""
        return self.q.shape[1] // self.k.shape[1]


# -- backends ----------------------------------------------------------------------------------------------


def _sdpa(call: _Call) -> Tensor:
    mask = block_mask(call.cu_seqlens, len(call.q), causal=call.causal, window=call.window)
    # One batch of [H, T, D]: a token that sees nothing, whose row would be NaN, cannot be; each sees itself.
    q, k, v = (each.transpose(0, 1).unsqueeze(0) for each in (call.q, call.k, call.v))
    out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=call.scale, enable_gqa=call.groups > 1)
    return out.squeeze(0).transpose(0, 1).contiguous()


def _flash_attn(call: _Call) -> Tensor:
    # By keyword only: the order of the arguments differs between FlashAttention 2, 3 and 4.
    out = _kernel(*_FLASH_ATTN)(
        q=call.q,
        k=call.k,
        v=call.v,
        cu_seqlens_q=call.cu_seqlens,
        cu_seqlens_k=call.cu_seqlens,
        max_seqlen_q=call.max_seqlen,
        max_seqlen_k=call.max_seqlen,
        softmax_scale=call.scale,
        causal=call.causal,
        window_size=call.window_size if call.window is not None else (-1, -1),
    )
    return _first(out)


def _torch_varlen(call: _Call) -> Tensor:
    kernel = _kernel(*_TORCH_VARLEN)
    takes = _parameters(kernel)
    q, k, v = call.q, call.k, call.v
    options: dict[str, Any] = {}
    if "window_size" in takes:
        options["window_size"] = call.window_size
    elif call.window is None:
        options["is_causal"] = call.causal
    else:
        raise Misuse(f"varlen_attention: torch {torch.__version__} has no windows in its kernel; torch 2.11 has")
    if call.groups > 1:
        if "enable_gqa" in takes:
            options["enable_gqa"] = True
        else:
            k, v = (each.repeat_interleave(call.groups, dim=1) for each in (k, v))
    if call.scale is not None:
        if "scale" in takes:
            options["scale"] = call.scale
        else:
            # The kernel divides by sqrt(D) itself.
            q = q * (call.scale * math.sqrt(q.shape[-1]))
    out = kernel(q, k, v, call.cu_seqlens, call.cu_seqlens, call.max_seqlen, call.max_seqlen, **options)
    return _first(out)


def _first(out: Any) -> Tensor:
    # Some versions give the sums of the softmax beside the output.
    first: Tensor = out[0] if isinstance(out, tuple) else out
    return first


def _unfit(q: Tensor) -> str:
    """Why the kernels cannot take such queries; empty if they can."""
    if not q.is_cuda:
        return f"runs on CUDA only, not on {q.device.type}"
    if q.dtype not in _HALF:
        return f"takes float16 and bfloat16, not {_name(q.dtype)}"
    if q.shape[-1] % 8 or q.shape[-1] > _MAX_HEAD_DIM:
        return f"takes heads of a multiple of 8, up to {_MAX_HEAD_DIM}, not of {q.shape[-1]}"
    if torch.version.hip is None and torch.cuda.get_device_capability(q.device) < _FIRST_CAPABILITY:
        return "needs a GPU of the Ampere generation or a newer one"
    return ""


def _kernel(module: str, name: str) -> Callable[..., Any]:
    found = _find(module, name)
    if isinstance(found, str):
        raise Misuse(f"varlen_attention: {module}.{name} cannot be used here: {found}")
    return found


@cache
def _find(module: str, name: str) -> Callable[..., Any] | str:
    """A kernel, or why it is not there. A package that is installed but does not load is as good as none."""
    try:
        kernel: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, OSError) as error:
        return str(error)
    return kernel


@cache
def _parameters(kernel: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(kernel).parameters)


# -- checks ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Facts:
    """With what a cu_seqlens was found right."""

    tokens: int
    max_seqlen: int
    version: int
    """Goes up with every change in place."""


_last_checked: tuple[weakref.ref[Tensor] | None, _Facts | None] = (None, None)
"""All layers of a model get the same tensor, so remembering one is enough."""


def _check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not isinstance(tensor, Tensor):
            raise Misuse(f"varlen_attention: {name} is a {type(tensor).__name__}; expected a tensor")
        if tensor.dim() != 3:
            raise Misuse(f"varlen_attention: {name} has shape {_shape(tensor)}; expected (T, heads, head_dim)")
        if tensor.dtype not in _DTYPES:
            raise Misuse(
                f"varlen_attention: {name} is {_name(tensor.dtype)}; expected a floating point dtype of "
                f"{', '.join(_name(dtype) for dtype in _DTYPES)}"
            )
        if tensor.dtype != q.dtype:
            raise Misuse(f"varlen_attention: {name} is {_name(tensor.dtype)}, but q is {_name(q.dtype)}")
        if tensor.device != q.device:
            raise Misuse(f"varlen_attention: {name} is on {tensor.device}, but q is on {q.device}")
    if k.shape != v.shape:
        raise Misuse(f"varlen_attention: k has shape {_shape(k)}, but v has {_shape(v)}")
    if k.shape[0] != q.shape[0] or k.shape[2] != q.shape[2]:
        raise Misuse(f"varlen_attention: k has shape {_shape(k)}, which does not fit q's {_shape(q)}")
    if not k.shape[1] or q.shape[1] % k.shape[1]:
        raise Misuse(f"varlen_attention: {k.shape[1]} key heads do not divide {q.shape[1]} query heads")


def _check_offsets(cu_seqlens: Tensor, q: Tensor, max_seqlen: Any) -> None:
    global _last_checked
    if not isinstance(cu_seqlens, Tensor):
        raise Misuse(f"varlen_attention: cu_seqlens is a {type(cu_seqlens).__name__}; expected a tensor of int32")
    if cu_seqlens.dtype != torch.int32:
        raise Misuse(
            f"varlen_attention: cu_seqlens is {_name(cu_seqlens.dtype)}; expected int32, "
            "which cumsum gives with dtype=torch.int32"
        )
    if cu_seqlens.dim() != 1 or len(cu_seqlens) < 2:
        raise Misuse(f"varlen_attention: cu_seqlens has shape {_shape(cu_seqlens)}; expected (segments + 1,)")
    if not cu_seqlens.is_contiguous():
        raise Misuse("varlen_attention: cu_seqlens is not contiguous; call .contiguous() on it")
    if cu_seqlens.device != q.device:
        raise Misuse(f"varlen_attention: cu_seqlens is on {cu_seqlens.device}, but q is on {q.device}")
    if isinstance(max_seqlen, Tensor):
        raise Misuse("varlen_attention: max_seqlen is a tensor; expected an int, which costs no wait for the device")
    if not _is_whole(max_seqlen):
        raise Misuse(f"varlen_attention: max_seqlen is {max_seqlen}; expected an int")
    if len(cu_seqlens) - 1 > MOST_SEGMENTS:
        raise Misuse(
            f"varlen_attention: {len(cu_seqlens) - 1:,} segments; a kernel takes {MOST_SEGMENTS:,} in one call: "
            "take fewer packs in a batch, or pack with --max-segments"
        )
    # Values lie on the device, and reading them there waits for it.
    if cu_seqlens.is_meta or torch.compiler.is_compiling() or (q.is_cuda and torch.cuda.is_current_stream_capturing()):
        return
    facts = _Facts(len(q), max_seqlen, 0 if cu_seqlens.is_inference() else cu_seqlens._version)
    known, known_facts = _last_checked
    if known is not None and known() is cu_seqlens and known_facts == facts:
        return
    _check_values(cu_seqlens, len(q), max_seqlen)
    # Tensors made in inference mode do not count their changes.
    if not cu_seqlens.is_inference():
        _last_checked = weakref.ref(cu_seqlens), facts


def _check_values(cu_seqlens: Tensor, tokens: int, max_seqlen: int) -> None:
    lengths = cu_seqlens.diff()
    first, last, shortest, longest = torch.stack([cu_seqlens[0], cu_seqlens[-1], lengths.min(), lengths.max()]).tolist()
    if shortest < 0:
        at = int(torch.argmax((lengths < 0).int()))
        raise Misuse(
            f"varlen_attention: cu_seqlens falls from {int(cu_seqlens[at])} to {int(cu_seqlens[at + 1])} "
            f"at index {at + 1}; offsets never fall"
        )
    if first != 0:
        raise Misuse(f"varlen_attention: cu_seqlens begins with {first}; expected 0")
    if last != tokens:
        raise Misuse(
            f"varlen_attention: cu_seqlens ends with {last}, but there are {tokens} tokens; "
            "what it does not cover would be uninitialised memory"
        )
    if longest > max_seqlen:
        raise Misuse(f"varlen_attention: max_seqlen is {max_seqlen}, but a segment has {longest} tokens")


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral | torch.SymInt)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))
