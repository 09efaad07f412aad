"""Attention within segments: every backend equals each segment alone, and what does not fit together is refused."""

import inspect
import math
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from packtool.errors import Misuse
from packtool.torch import attention, varlen_attention
from packtool.torch.attention import block_mask, choose_backend
from tests.torch import reference_kernel


def draw(tokens: int, heads: int = 4, kv_heads: int = 2, size: int = 8, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Random queries, keys and values that take gradients."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(tokens, n, size, generator=generator) for n in (heads, kv_heads, kv_heads))
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_()


def offsets(*lengths: int) -> Tensor:
    """cu_seqlens."""
    return torch.tensor([0, *lengths]).cumsum(0, dtype=torch.int32)


def alone(
    q: Tensor, k: Tensor, v: Tensor, lengths: list[int], causal: bool, window: int | None, scale: float
) -> Tensor:
    """Row by row: the softmax over what the token may see, of its own segment."""
    groups = q.shape[1] // k.shape[1]
    rows, start = [], 0
    for length in lengths:
        for i in range(start, start + length):
            seen = [
                j
                for j in range(start, start + length)
                if (j <= i or not causal) and (window is None or abs(i - j) < window)
            ]
            heads = []
            for head in range(q.shape[1]):
                scores = torch.stack([q[i, head] @ k[j, head // groups] for j in seen]) * scale
                heads.append(scores.softmax(0) @ torch.stack([v[j, head // groups] for j in seen]))
            rows.append(torch.stack(heads))
        start += length
    return torch.stack(rows)


@given(
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=5),
    heads=st.sampled_from([(1, 1), (2, 2), (4, 2), (3, 1)]),
    causal=st.booleans(),
    window=st.one_of(st.none(), st.integers(1, 8)),
    scale=st.one_of(st.none(), st.floats(0.1, 2.0)),
    empty=st.integers(0, 2),
)
def test_output_and_gradients_equal_each_segment_alone(
    lengths: list[int],
    heads: tuple[int, int],
    causal: bool,
    window: int | None,
    scale: float | None,
    empty: int,
) -> None:
    q, k, v = draw(sum(lengths), *heads, size=4)
    out = varlen_attention(
        q, k, v, offsets(*lengths, *[0] * empty), max(lengths), causal=causal, window=window, scale=scale
    )
    expected = alone(q, k, v, lengths, causal, window, 0.5 if scale is None else scale)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    for found, right in zip(
        torch.autograd.grad((out * weights).sum(), (q, k, v)),
        torch.autograd.grad((expected * weights).sum(), (q, k, v)),
        strict=True,
    ):
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)


def test_segments_of_one_token_see_only_themselves() -> None:
    tokens = 4_096
    q, k, v = (each.detach() for each in draw(tokens, 1, 1, 2))
    assert torch.equal(varlen_attention(q, k, v, offsets(*[1] * tokens), 1), v)


def test_other_tokens_in_one_segment_change_no_bit_of_another() -> None:
    q, k, v = (each.detach() for each in draw(21))
    before = varlen_attention(q, k, v, offsets(7, 5, 9), 9)
    for each in (q, k, v):
        each[7:12] = 50.0
    after = varlen_attention(q, k, v, offsets(7, 5, 9), 9)
    assert torch.equal(before[:7], after[:7])
    assert torch.equal(before[12:], after[12:])
    assert not torch.equal(before[7:12], after[7:12])


@pytest.mark.parametrize("window", [None, 2])
def test_block_mask_says_who_sees_whom(window: int | None) -> None:
    mask = block_mask(offsets(1, 3), 4, window=window)
    seen = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0], [0, 1 if window is None else 0, 1, 1]]
    assert mask.int().tolist() == seen


@pytest.mark.soak
def test_it_compiles_without_a_break() -> None:
    q, k, v = draw(21)
    compiled = torch.compile(varlen_attention, fullgraph=True)
    torch.testing.assert_close(compiled(q, k, v, offsets(7, 5, 9), 9), varlen_attention(q, k, v, offsets(7, 5, 9), 9))


# --- what is refused -------------------------------------------------------------------------------------------

Change = Callable[[dict[str, Any]], None]


def setting(name: str, change: Callable[[Any], Any]) -> Change:
    """Change one argument."""

    def apply(arguments: dict[str, Any]) -> None:
        arguments[name] = change(arguments[name])

    return apply


REFUSED = {
    "dimensions": (setting("q", lambda q: q[0]), "q has shape (4, 8); expected (T, heads, head_dim)"),
    "integers": (setting("q", lambda q: q.long()), "q is int64; expected a floating point dtype"),
    "a float that no kernel knows": (
        setting("q", lambda q: q.to(torch.float8_e4m3fn)),
        "q is float8_e4m3fn; expected a floating point dtype of float16, bfloat16, float32, float64",
    ),
    "no tensor": (setting("v", lambda v: v.tolist()), "v is a list; expected a tensor"),
    "offsets of a list": (setting("cu_seqlens", lambda c: c.tolist()), "cu_seqlens is a list; expected a tensor"),
    "offsets of numpy": (setting("cu_seqlens", lambda c: c.numpy()), "cu_seqlens is a ndarray; expected a tensor"),
    "no max_seqlen": (setting("max_seqlen", lambda _: None), "max_seqlen is None; expected an int"),
    "a broken max_seqlen": (setting("max_seqlen", lambda _: 7.0), "max_seqlen is 7.0; expected an int"),
    "a broken window": (setting("window", lambda _: 2.5), "window is 2.5; a whole number"),
    "a window of two": (setting("window", lambda _: (2, 0)), "window is (2, 0); a whole number"),
    "mixed dtypes": (setting("k", lambda k: k.half()), "k is float16, but q is float32"),
    "k and v differ": (setting("v", lambda v: v[:, :1]), "k has shape (12, 2, 8), but v has (12, 1, 8)"),
    "heads": (lambda a: a.update(k=a["k"][:, :0], v=a["v"][:, :0]), "0 key heads do not divide 4"),
    "head dim": (lambda a: a.update(k=a["k"][..., :4], v=a["v"][..., :4]), "does not fit q's (12, 4, 8)"),
    "tokens": (lambda a: a.update(k=a["k"][:5], v=a["v"][:5]), "does not fit q's (12, 4, 8)"),
    "int64 offsets": (setting("cu_seqlens", lambda c: c.long()), "cu_seqlens is int64; expected int32"),
    "offsets of a batch": (setting("cu_seqlens", lambda c: c[None]), "cu_seqlens has shape (1, 3)"),
    "strided offsets": (
        setting("cu_seqlens", lambda c: torch.stack([c, c], dim=1)[:, 0]),
        "cu_seqlens is not contiguous",
    ),
    "no segment": (setting("cu_seqlens", lambda c: c[:1]), "cu_seqlens has shape (1,)"),
    "first offset": (setting("cu_seqlens", lambda c: c + 1), "cu_seqlens begins with 1; expected 0"),
    "too short": (setting("cu_seqlens", lambda c: c - c // 12), "cu_seqlens ends with 11, but there are 12 tokens"),
    "falling": (
        setting("cu_seqlens", lambda _: torch.tensor([0, 9, 5, 12], dtype=torch.int32)),
        "cu_seqlens falls from 9 to 5 at index 2",
    ),
    "too many segments": (
        setting("cu_seqlens", lambda _: torch.zeros(65_537, dtype=torch.int32)),
        "65,536 segments; a kernel takes 65,535",
    ),
    "max_seqlen": (setting("max_seqlen", lambda _: 6), "max_seqlen is 6, but a segment has 7 tokens"),
    "max_seqlen a tensor": (setting("max_seqlen", torch.tensor), "max_seqlen is a tensor"),
    "window": (setting("window", lambda _: 0), "window is 0"),
    "no such backend": (setting("backend", lambda _: "triton"), "no backend 'triton'"),
    "kernel on a CPU": (setting("backend", lambda _: "torch"), "runs on CUDA only, not on cpu"),
    "package on a CPU": (setting("backend", lambda _: "flash_attn"), "runs on CUDA only, not on cpu"),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_does_not_fit_is_refused_in_one_line(name: str) -> None:
    q, k, v = draw(12)
    change, message = REFUSED[name]
    arguments = {
        "q": q,
        "k": k,
        "v": v,
        "cu_seqlens": offsets(5, 7),
        "max_seqlen": 7,
        "window": None,
        "backend": "auto",
    }
    change(arguments)
    with pytest.raises(Misuse) as refused:
        varlen_attention(**arguments)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_offsets_that_were_right_are_looked_at_again_when_anything_changed() -> None:
    q, k, v = draw(12)
    places = offsets(5, 7)
    varlen_attention(q, k, v, places, 7)
    with pytest.raises(Misuse, match="max_seqlen"):
        varlen_attention(q, k, v, places, 6)
    with pytest.raises(Misuse, match="12, but there are 11 tokens"):
        varlen_attention(q[1:], k[1:], v[1:], places, 7)
    places[1] = 13
    with pytest.raises(Misuse, match="falls from 13"):
        varlen_attention(q, k, v, places, 13)


# --- kernels: fakes with the signatures of the real ones --------------------------------------------------------


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if tensors on the CPU suited the kernels; what was found of these before is forgotten."""
    monkeypatch.setattr(attention, "_unfit", lambda _: "")
    attention._find.cache_clear()
    yield
    attention._find.cache_clear()


def install(monkeypatch: pytest.MonkeyPatch, module: str, **functions: Any) -> None:
    """Put a fake module in the way of an import."""
    fake = ModuleType(module)
    vars(fake).update(functions)
    monkeypatch.setitem(sys.modules, module, fake)


def flash_attn_varlen_func(
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
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Tensor:
    """The signature of flash-attn 2.8."""
    assert alibi_slopes is block_table is None
    assert not any((softcap, deterministic, return_attn_probs))
    return reference_kernel.varlen(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal, window_size
    )


def varlen_attn_2_10(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    is_causal: bool = False,
    return_aux: Any = None,
) -> Tensor:
    """The signature of torch 2.10: no windows, no scale, equal numbers of heads."""
    assert return_aux is None
    assert query.shape == key.shape == value.shape
    return reference_kernel.varlen(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, causal=is_causal)


def varlen_attn_2_11(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    return_aux: Any = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
) -> Tensor:
    """The signature of torch 2.11: causal is a window without a right side."""
    assert return_aux is None
    assert query.shape == key.shape == value.shape
    return reference_kernel.varlen(
        query,
        key,
        value,
        cu_seq_q,
        cu_seq_k,
        max_q,
        max_k,
        softmax_scale=scale,
        causal=window_size[1] == 0,
        window_size=window_size,
    )


def varlen_attn_2_12(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: Any = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> Tensor:
    """The signature of torch 2.12 and 2.13: grouped heads if asked for."""
    assert return_aux is seqused_k is block_table is num_splits is None
    assert cu_seq_k is not None
    assert enable_gqa == (query.shape[1] != key.shape[1])
    groups = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(groups, dim=1) for each in (key, value))
    return varlen_attn_2_11(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale=scale, window_size=window_size)


TORCH = {"2.10": varlen_attn_2_10, "2.11": varlen_attn_2_11, "2.12": varlen_attn_2_12}
OPTIONS: list[dict[str, Any]] = [{}, {"causal": False}, {"scale": 0.3}, {"window": 3}]


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kernel", ["flash_attn", *TORCH])
def test_kernels_are_called_so_that_they_give_what_sdpa_gives(
    monkeypatch: pytest.MonkeyPatch, kernel: str, options: dict[str, Any]
) -> None:
    if kernel == "flash_attn":
        install(monkeypatch, "flash_attn", flash_attn_varlen_func=flash_attn_varlen_func)
    else:
        monkeypatch.setitem(sys.modules, "flash_attn", None)
        monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", TORCH[kernel])
    q, k, v = draw(12)
    places = offsets(5, 7)
    expected = varlen_attention(q, k, v, places, 7, backend="sdpa", **options)
    has_windows = kernel != "2.10"
    if "window" in options and not has_windows:
        assert choose_backend(q, options["window"]) == "sdpa"
        with pytest.raises(Misuse, match="has no windows"):
            varlen_attention(q, k, v, places, 7, backend="torch", **options)
    else:
        assert choose_backend(q) == ("flash_attn" if kernel == "flash_attn" else "torch")
    torch.testing.assert_close(varlen_attention(q, k, v, places, 7, **options), expected)


@pytest.mark.usefixtures("on_gpu")
def test_flash_attn_is_given_everything_by_keyword(monkeypatch: pytest.MonkeyPatch) -> None:
    def keywords_only(*positional: Any, **named: Any) -> Tensor:
        assert not positional
        return flash_attn_varlen_func(**named)

    install(monkeypatch, "flash_attn", flash_attn_varlen_func=keywords_only)
    q, k, v = draw(12)
    assert varlen_attention(q, k, v, offsets(5, 7), 7, backend="flash_attn").shape == q.shape


@pytest.mark.usefixtures("on_gpu")
def test_a_flash_attn_that_does_not_load_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn", None)  # its import raises
    q, k, v = draw(12)
    assert choose_backend(q) == "torch"
    with pytest.raises(Misuse, match="flash_attn_varlen_func cannot be used here"):
        varlen_attention(q, k, v, offsets(5, 7), 7, backend="flash_attn")


def test_the_installed_torch_has_one_of_the_signatures_above() -> None:
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    found = inspect.signature(varlen.varlen_attn).parameters
    assert any(list(found) == list(inspect.signature(each).parameters) for each in TORCH.values())


def test_a_scale_may_stand_for_the_kernel_s_own() -> None:
    q, k, v = (each.detach() for each in draw(12))
    by_default = varlen_attention(q, k, v, offsets(5, 7), 7)
    torch.testing.assert_close(varlen_attention(q, k, v, offsets(5, 7), 7, scale=1 / math.sqrt(8)), by_default)
