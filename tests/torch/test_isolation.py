"""``check_isolation`` calls every combination right: what isolates, what leaks, and what cannot be told."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from packtool.errors import Misuse, PacktoolError
from packtool.torch import check_isolation, varlen_attention
from packtool.torch.isolation import IsolationReport

transformers = pytest.importorskip("transformers")

from tests.torch import models, reference_kernel  # noqa: E402

Options = dict[str, Any]
NO_CACHE: Options = {"use_cache": False}


@pytest.fixture(autouse=True)
def _without_compiling() -> Iterator[None]:
    """transformers compiles the masks of flex attention; interpreted they are the same, sooner."""
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.fixture
def flash() -> Iterator[str]:
    """The FlashAttention path with a kernel that runs here."""
    with reference_kernel.registered() as name:
        yield name


def check(model: Any, options: Options, **batch: Any) -> IsolationReport:
    """A batch of four documents with what ``options`` give the model in addition."""
    return check_isolation(model, {**(batch or models.batch()), **options})


# --- the table: attention, what is given, verdict, words of the cause -------------------------------------------


def segment_numbers() -> torch.Tensor:
    """1, 2, 3, 4 at the tokens of each document."""
    return torch.repeat_interleave(torch.arange(1, 5), torch.tensor(models.LENGTHS))[None]


def with_hole() -> torch.Tensor:
    """Ones, and a 0 at the last token."""
    mask = torch.ones(1, sum(models.LENGTHS), dtype=torch.long)
    mask[0, -1] = 0
    return mask


GIVEN: dict[str, Callable[[], Options]] = {
    "positions": lambda: NO_CACHE,
    "positions with the cache left on": dict,
    "a mask of ones": lambda: {**NO_CACHE, "attention_mask": torch.ones(1, sum(models.LENGTHS), dtype=torch.long)},
    "a mask of ones, and the cache": lambda: {"attention_mask": torch.ones(1, sum(models.LENGTHS), dtype=torch.long)},
    "a mask with a 0": lambda: {**NO_CACHE, "attention_mask": with_hole()},
    "a mask of segment numbers": lambda: {**NO_CACHE, "attention_mask": segment_numbers()},
    "a float block mask": lambda: {**NO_CACHE, "attention_mask": models.as_float(models.block_mask())},
    "a bool block mask": lambda: {**NO_CACHE, "attention_mask": models.block_mask()},
}
DENSE = ("eager", "sdpa", "flex_attention")
TABLE: list[tuple[str, str, bool, str]] = [
    *((attention, "positions", True, "") for attention in DENSE),
    *((attention, "positions with the cache left on", False, "use_cache=False") for attention in DENSE),
    *((attention, "a mask of ones", False, "leave it out") for attention in DENSE),
    *((attention, "a mask of ones, and the cache", False, "leave it out, and pass use_cache") for attention in DENSE),
    *((attention, "a mask with a 0", False, "leave it out") for attention in DENSE),
    *((attention, "a mask of segment numbers", False, "leave it out") for attention in DENSE),
    ("eager", "a float block mask", True, ""),
    ("sdpa", "a float block mask", True, ""),
    ("sdpa", "a bool block mask", True, ""),
    ("eager", "a bool block mask", False, "give it in float"),
]


@pytest.mark.parametrize(("attention", "given", "isolates", "cause"), TABLE)
def test_every_row_of_the_table_is_called_right(attention: str, given: str, isolates: bool, cause: str) -> None:
    report = check(models.llama(attention), GIVEN[given]())
    assert report.isolates is isolates
    assert cause in report.cause
    assert bool(report.cause) is not isolates
    assert report.ok is isolates
    assert report.attention == attention
    assert (report.largest_difference < 1e-4) is isolates
    assert (report.largest_difference > 0.1) is not isolates
    assert report.control > 0.1
    assert bool(report.leaks) is not isolates
    assert report.losses_agree is isolates
    if attention == "flex_attention":
        assert report.gradients_agree is None
        assert report.gradient_note
    else:
        assert report.gradients_agree is isolates


def test_flash_with_positions_in_one_row_isolates(flash: str) -> None:
    assert check(models.llama(flash), NO_CACHE).ok


def test_flash_with_the_four_keys_isolates(flash: str) -> None:
    batch = models.batch()
    del batch["position_ids"]  # the kernel needs none; the rotations then differ by a constant, which cancels out
    report = check(models.llama(flash), {**models.varlen_keys(), **NO_CACHE}, **batch)
    assert report.ok
    assert report.boundaries == "cu_seq_lens_q"


def test_flash_with_the_four_keys_isolates_whatever_the_cache(flash: str) -> None:
    assert check(models.llama(flash), models.varlen_keys()).ok


def test_flash_with_some_of_the_keys_leaks_and_is_told_so(flash: str) -> None:
    batch = models.batch()
    del batch["position_ids"]
    keys = models.varlen_keys()
    del keys["max_length_k"]
    report = check(models.llama(flash), {**keys, **NO_CACHE}, **batch)
    assert report.isolates is False
    assert "only some of the four" in report.cause


def test_flash_with_positions_in_two_rows_leaks_in_each_row(flash: str) -> None:
    report = check(models.llama(flash), NO_CACHE, **models.batch(rows=2))
    assert report.isolates is False
    assert "flatten the packs into one row" in report.cause
    assert {leak.source // 4 == leak.target // 4 for leak in report.leaks} == {True}, "rows do not see each other"


def test_flash_with_two_packs_flattened_and_the_four_keys_isolates(flash: str) -> None:
    two = (*models.LENGTHS, *models.LENGTHS)
    report = check(models.llama(flash), {**models.varlen_keys(*two), **NO_CACHE}, **models.batch(*two))
    assert report.ok
    assert report.segments == 8


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_positions_in_two_rows_isolate_where_the_mask_is_made_from_them(attention: str) -> None:
    assert check(models.llama(attention), NO_CACHE, **models.batch(rows=2)).ok


# --- families ---------------------------------------------------------------------------------------------------

NAMES: Options = {"vocab_size": models.VOCABULARY, "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 2}
FEW: Options = {name: value for name, value in models.SIZES.items() if name != "num_key_value_heads"}
DELTA: Options = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
MAMBA: Options = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 16,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 8,
}
EXPERTS: Options = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
ISOLATING: dict[str, tuple[str, Options]] = {
    "llama": ("LlamaConfig", models.SIZES),
    "qwen3": ("Qwen3Config", {**models.SIZES, "head_dim": 8}),
    "mistral": ("MistralConfig", {**models.SIZES, "sliding_window": 4}),
    "gemma3": ("Gemma3TextConfig", {**models.SIZES, "head_dim": 8, "sliding_window": 4}),
    "gpt_neox": ("GPTNeoXConfig", FEW),
    "qwen3_moe": ("Qwen3MoeConfig", {**models.SIZES, "head_dim": 8, **EXPERTS}),
}
LEAKING: dict[str, tuple[str, Options, str]] = {
    "bloom": ("BloomConfig", {**NAMES, "hidden_size": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.3}, ""),
    "opt": (
        "OPTConfig",
        {**NAMES, **FEW, "ffn_dim": 64, "word_embed_proj_dim": 32, "init_std": 0.3},
        "a 4-D float block mask isolates it",
    ),
    "mpt": (
        "MptConfig",
        {**NAMES, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64, "initializer_range": 0.3},
        "a 4-D float block mask isolates it",
    ),
    "mamba2": (
        "Mamba2Config",
        {**FEW, "num_heads": 8, "head_dim": 8, "state_size": 16, "n_groups": 2, "chunk_size": 8},
        "Mamba2Mixer), which need seq_idx",
    ),
    "qwen3_next": (
        "Qwen3NextConfig",
        {
            **models.SIZES,
            "head_dim": 8,
            **DELTA,
            **EXPERTS,
            "shared_expert_intermediate_size": 16,
            "layer_types": ["linear_attention", "full_attention"],
        },
        "Qwen3NextGatedDeltaNet), which need seq_idx",
    ),
    "bamba": ("BambaConfig", {**models.SIZES, "attn_layer_indices": [1], **MAMBA}, "BambaMixer), which need seq_idx"),
    "lfm2": (
        "Lfm2Config",
        {**models.SIZES, "layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
        "Lfm2ShortConv), which need seq_idx",
    ),
}


def family(config: str, options: Options) -> Any:
    """A tiny model with the attention that transformers chooses; skips where this version has no such model."""
    made = getattr(transformers, config, None)
    if made is None:
        pytest.skip(f"transformers {transformers.__version__} has no {config}")
    return models.build(made(**options), None)


@pytest.mark.parametrize("name", list(ISOLATING))
def test_families_that_isolate_by_positions_are_called_isolating(name: str) -> None:
    report = check(family(*ISOLATING[name]), NO_CACHE)
    assert report.ok, report.cause


@pytest.mark.parametrize("name", list(LEAKING))
def test_families_that_leak_silently_are_called_leaking(name: str) -> None:
    config, options, cause = LEAKING[name]
    report = check(family(config, options), NO_CACHE)
    assert report.isolates is False
    assert cause in report.cause
    assert report.largest_difference > 0.1


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("make", [models.llama, models.qwen3, models.gpt2], ids=["llama", "qwen3", "gpt2"])
def test_packed_loss_and_gradients_are_those_of_the_documents_alone(make: Any, attention: str) -> None:
    model = make(attention)
    report = check(model, NO_CACHE)
    assert report.ok
    assert report.gradient_difference is not None
    assert report.gradient_difference < 1e-5
    assert report.loss == pytest.approx(report.loss_alone, rel=1e-5)
    assert report.loss == pytest.approx(_loss_by_hand(model), rel=1e-5)


def _loss_by_hand(model: Any) -> float:
    batch, start, losses = models.batch(), 0, []
    for length in models.LENGTHS:
        ids, labels = (batch[name][:, start : start + length] for name in ("input_ids", "labels"))
        start += length
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0]
        losses += [
            float(torch.nn.functional.cross_entropy(logits[i - 1], labels[0, i]))
            for i in range(1, length)
            if labels[0, i] != -100
        ]
    return sum(losses) / len(losses)


def test_flex_isolates_forward_for_other_models_too() -> None:
    report = check(models.qwen3("flex_attention"), NO_CACHE)
    assert report.ok
    assert report.gradients_agree is None


# --- models of other makers -------------------------------------------------------------------------------------


class Small(nn.Module):
    """Embeds, lets ``mix`` do what it does to [T, H], and predicts; takes what VarlenCollator gives."""

    def __init__(self, mix: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(models.VOCABULARY, 16)
        self.head = nn.Linear(16, models.VOCABULARY)
        self.mix = mix
        self.dropout = nn.Dropout(0.5)

    def forward(self, input_ids: torch.Tensor, cu_seq_lens_q: torch.Tensor, max_length_q: int) -> torch.Tensor:
        hidden = self.mix(self.embedding(input_ids[0]), cu_seq_lens_q, max_length_q)
        return self.head(self.dropout(hidden))[None]


def within_documents(x: torch.Tensor, cu_seqlens: torch.Tensor, longest: int) -> torch.Tensor:
    """varlen_attention of one head."""
    heads = x[:, None]
    return x + varlen_attention(heads, heads, heads, cu_seqlens, longest)[:, 0]


def across_documents(x: torch.Tensor, cu_seqlens: torch.Tensor, longest: int) -> torch.Tensor:
    """The same with boundaries ignored."""
    del cu_seqlens, longest
    return within_documents(x, torch.tensor([0, len(x)], dtype=torch.int32), len(x))


def per_token(x: torch.Tensor, cu_seqlens: torch.Tensor, longest: int) -> torch.Tensor:
    """Mixes nothing."""
    del cu_seqlens, longest
    return x


def faint(x: torch.Tensor, cu_seqlens: torch.Tensor, longest: int) -> torch.Tensor:
    """Within documents, and a thousandth of everything before."""
    return within_documents(x, cu_seqlens, longest) + 1e-3 * x.cumsum(0)


def by_row_length(x: torch.Tensor, cu_seqlens: torch.Tensor, longest: int) -> torch.Tensor:
    """Within documents, but scaled by how long the row is."""
    return within_documents(x, cu_seqlens, longest) * len(x)


def varlen_batch() -> Options:
    """As VarlenCollator gives it."""
    return {**models.batch(), **models.varlen_keys()}


def test_a_model_of_ones_own_on_varlen_attention_isolates() -> None:
    report = check_isolation(Small(within_documents), varlen_batch())
    assert report.ok, report.cause
    assert report.gradients_agree
    assert set(report.unused) == {"position_ids", "cu_seq_lens_k", "max_length_k"}


def test_a_model_that_ignores_boundaries_leaks_forward_only() -> None:
    report = check_isolation(Small(across_documents), varlen_batch())
    assert report.isolates is False
    assert all(leak.source < leak.target for leak in report.leaks)
    assert (report.leaks[0].difference, report.leaks[-1].difference) == (
        max(leak.difference for leak in report.leaks),
        min(leak.difference for leak in report.leaks),
    )
    assert "does not take the boundaries" in report.cause


def test_a_faint_leak_is_a_leak() -> None:
    report = check_isolation(Small(faint), varlen_batch())
    assert report.isolates is False
    assert report.influence < 0.1


def test_where_the_control_shows_no_leak_the_verdict_is_cannot_tell() -> None:
    report = check_isolation(Small(per_token), varlen_batch())
    assert report.isolates is None
    assert not report.ok
    assert "mask of ones" in report.cause
    assert report.control == 0


def test_what_differs_from_alone_without_a_leak_is_not_isolated() -> None:
    report = check_isolation(Small(by_row_length), varlen_batch())
    assert report.isolates is False
    assert not report.leaks
    assert "depends on the length of the row" in report.cause


def test_one_document_alone_cannot_tell() -> None:
    report = check(models.llama(), NO_CACHE, **models.batch(9))
    assert report.isolates is None
    assert "one segment" in report.cause


def test_logits_that_are_no_numbers_cannot_tell() -> None:
    model = models.llama()
    nn.init.constant_(model.lm_head.weight, float("nan"))
    report = check(model, NO_CACHE)
    assert report.isolates is None
    assert "not finite" in report.cause
    assert "Infinity" not in str(report.to_json())


def test_positions_that_do_not_restart_differ_where_positions_are_learned() -> None:
    mask = models.as_float(models.block_mask())
    batch = {**models.batch(), "position_ids": torch.arange(22)[None]}
    options = {**NO_CACHE, "attention_mask": mask}
    report = check_isolation(models.gpt2(), {**batch, **options}, seq_lengths=models.LENGTHS)
    assert report.isolates is False
    assert "do not restart" in report.cause


def test_missing_positions_are_named() -> None:
    batch = models.batch()
    del batch["position_ids"]
    report = check_isolation(models.llama(), {**batch, **NO_CACHE}, seq_lengths=models.LENGTHS)
    assert report.isolates is False
    assert "position_ids are missing" in report.cause


def test_what_only_differs_is_not_called_a_leak_between_documents() -> None:
    assert str(check_isolation(Small(by_row_length), varlen_batch())).startswith("does not isolate: ")
    assert str(check_isolation(Small(across_documents), varlen_batch())).startswith("LEAKS: ")


def test_experts_that_round_otherwise_for_other_tokens_still_isolate(flash: str) -> None:
    # With a varlen kernel the first control isolates, too, and moves by rounding alone; another one must be tried.
    options = {**models.SIZES, "num_experts": 4, "num_experts_per_tok": 2}
    model = models.build(transformers.OlmoeConfig(**options), flash)
    report = check(model, {**models.varlen_keys(), **NO_CACHE})
    assert report.ok, report.cause
    assert report.influence < 1e-4
    assert report.control > 1


@pytest.mark.parametrize("share", [1.0, 1e-3])
@pytest.mark.parametrize(("source", "target"), [(1, 2), (6, 7), (3, 18), (19, 0), (12, 5)])
def test_a_leak_between_any_two_of_many_segments_is_found(source: int, target: int, share: float) -> None:
    def one_pair(x: torch.Tensor, cu_seqlens: torch.Tensor, longest: int) -> torch.Tensor:
        y = within_documents(x, cu_seqlens, longest)
        if len(cu_seqlens) > 20:
            y[cu_seqlens[target]] += share * x[cu_seqlens[source]]
        return y

    lengths = (3,) * 20
    batch = {**models.batch(*lengths), **models.varlen_keys(*lengths)}
    report = check_isolation(Small(one_pair), batch)
    assert report.isolates is False
    assert (report.leaks[0].source, report.leaks[0].target) == (source, target)


CAUSES: dict[str, tuple[Options, str]] = {
    "positions that run on": ({"position_ids": torch.arange(22)[None]}, "position_ids do not restart"),
    "a float mask that lets a little through": (
        {"attention_mask": torch.zeros(1, 1, 22, 22).masked_fill_(~models.block_mask(), -3.0)},
        "attention_mask lets tokens of one segment look into another",
    ),
}


@pytest.mark.parametrize("name", list(CAUSES))
def test_the_cause_is_what_alone_mends_the_leak(name: str) -> None:
    change, cause = CAUSES[name]
    batch = {**models.batch(), **NO_CACHE, **change}
    report = check_isolation(models.llama(), batch, seq_lengths=models.LENGTHS)
    assert report.isolates is False
    assert report.cause.startswith(cause)
    assert "seq_idx" not in report.cause


def test_offsets_that_are_not_those_of_the_segments_are_the_cause(flash: str) -> None:
    keys = models.varlen_keys(12, 1, 9)
    report = check_isolation(models.llama(flash), {**models.batch(), **keys, **NO_CACHE}, seq_lengths=models.LENGTHS)
    assert report.isolates is False
    assert report.cause.startswith("the varlen keys are not those of the segments")


def test_flex_attention_is_never_given_a_mask_on_which_it_may_crash() -> None:
    mask = models.as_float(models.block_mask())
    with pytest.raises(Misuse, match="flex_attention takes no 4-D attention_mask"):
        check(models.llama("flex_attention"), {**NO_CACHE, "attention_mask": mask})
    config, options, cause = LEAKING["lfm2"]
    report = check(models.build(getattr(transformers, config)(**options), "flex_attention"), NO_CACHE)
    assert report.isolates is False
    assert cause in report.cause


@pytest.mark.parametrize("longest", [22, 100])
def test_what_depends_on_the_longest_position_is_found_without_a_long_segment(longest: int) -> None:
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
    scaled = models.llama(max_position_embeddings=30, rope_parameters=rope)
    batch = {**models.batch(), **NO_CACHE}
    assert check_isolation(scaled, batch).ok
    assert check_isolation(models.llama(), batch, longest=longest).ok
    report = check_isolation(scaled, batch, longest=longest)
    assert report.isolates is (longest <= 30)
    assert longest <= 30 or "largest position in the row" in report.cause


def test_positions_that_a_model_does_not_have_are_named() -> None:
    with pytest.raises(PacktoolError, match="GPT2LMHeadModel does not take position 99, which the longest segment"):
        check_isolation(models.gpt2(), {**models.batch(), **NO_CACHE}, longest=100)


# --- labels -----------------------------------------------------------------------------------------------------


def test_labels_at_segment_starts_are_found() -> None:
    batch = models.batch()
    batch["labels"] = batch["input_ids"].clone()
    report = check(models.llama(), NO_CACHE, **batch)
    assert report.isolates is True
    assert not report.ok
    assert "first token of 4 segments" in report.cause


def test_labels_that_are_shifted_already_are_found() -> None:
    batch = models.batch()
    batch["labels"] = torch.cat([batch["input_ids"][:, 1:], torch.tensor([[-100]])], dim=1)
    report = check(models.llama(), NO_CACHE, **batch)
    assert report.isolates is True
    assert not report.ok
    assert "shifted already" in report.label_fault


def test_without_labels_only_logits_are_compared() -> None:
    batch = models.batch()
    del batch["labels"]
    report = check(models.llama(), NO_CACHE, **batch)
    assert report.ok
    assert (report.loss, report.losses_agree, report.gradients_agree) == (None, None, None)


def test_a_loss_that_cannot_be_computed_is_named_beside_the_verdict() -> None:
    batch = models.batch()
    batch["labels"] = batch["labels"].int()  # as they lie in the shards
    report = check(models.llama(), NO_CACHE, **batch)
    assert report.isolates is True
    assert not report.ok
    assert report.cause.startswith("given labels, the model does not run: RuntimeError")
    assert report.gradients_agree is None
    assert (report.loss, report.losses_agree) == (None, None)


def test_the_number_of_tokens_of_the_whole_step_does_not_matter() -> None:
    report = check(models.llama(), {**NO_CACHE, "num_items_in_batch": torch.tensor(36)})
    assert report.ok, report.cause


# --- the model is left as it was; precision ---------------------------------------------------------------------


def test_the_model_is_left_as_it_was() -> None:
    model = models.llama().train().to(torch.bfloat16)
    model.model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    before = {name: (value, value.clone(), value.dtype) for name, value in model.state_dict(keep_vars=True).items()}
    random = torch.get_rng_state()
    report = check(model, NO_CACHE)
    assert report.ok
    assert report.dtype == "float32"
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random)
    for name, value in model.state_dict(keep_vars=True).items():
        same, copy, dtype = before[name]
        assert value is same
        assert value.dtype == dtype
        assert torch.equal(value, copy)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_rotary_frequencies_that_scale_with_the_row_are_left_as_they_were() -> None:
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
    model = models.llama(max_position_embeddings=8, rope_parameters=rope)
    rotary = model.model.rotary_emb
    before = {name: value for name, value in vars(rotary).items() if isinstance(value, int)}
    frequencies = {name: (value, value.clone()) for name, value in rotary.named_buffers()}
    check(model, NO_CACHE)
    assert {name: value for name, value in vars(rotary).items() if isinstance(value, int)} == before
    for name, value in rotary.named_buffers():
        assert value is frequencies[name][0]
        assert torch.equal(value, frequencies[name][1])


def test_a_model_in_float64_is_looked_at_in_float64() -> None:
    report = check(models.llama().double(), NO_CACHE)
    assert report.ok, report.cause
    assert report.dtype == "float64"
    assert report.largest_difference < 1e-12
    assert report.tolerance < 1e-12


@pytest.fixture
def half(flash: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same with a kernel that, as the real one, refuses float32."""
    real = reference_kernel._one

    def half_only(q: torch.Tensor, *rest: Any) -> torch.Tensor:
        if q.dtype not in (torch.float16, torch.bfloat16):
            raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
        return real(q, *rest)

    monkeypatch.setattr(reference_kernel, "_one", half_only)
    return flash


def test_a_kernel_that_refuses_float32_runs_in_half_precision(half: str) -> None:
    for model in (models.llama(half), models.llama(half).to(torch.float16)):
        own = model.dtype
        report = check(model, {**models.varlen_keys(), **NO_CACHE})
        assert report.ok, report.cause
        assert report.influence == 0, "an isolated segment is the same to the last bit"
        assert report.dtype == ("bfloat16" if own == torch.float32 else "float16")
        assert model.dtype == own
        leaking = check(model, NO_CACHE, **models.batch(rows=2))
        assert leaking.isolates is False


def test_a_leak_that_half_precision_could_hide_is_found(half: str) -> None:
    config, options, _ = LEAKING["lfm2"]
    model = models.build(getattr(transformers, config)(**{**options, "initializer_range": 0.02}), half)
    report = check(model, {**models.varlen_keys(), **NO_CACHE})
    assert report.dtype == "bfloat16"
    assert report.isolates is False
    assert 0 < report.influence < report.control / 5, "a fraction of what a leak of attention looks like"


@pytest.mark.parametrize("share", [1e-3, 1e-2, 0.1, 1.0])
def test_no_leak_in_half_precision_is_called_isolated_however_faint(share: float) -> None:
    def mean_of_row(x: torch.Tensor, cu_seqlens: torch.Tensor, longest: int) -> torch.Tensor:
        return within_documents(x, cu_seqlens, longest) + share * x.mean(0)

    report = check_isolation(Small(mean_of_row).to(torch.bfloat16), varlen_batch())
    assert report.dtype == "bfloat16"
    assert report.isolates is (False if share == 1 else None)
    assert share == 1 or "no more than rounding may" in report.cause


def test_a_loss_that_is_wrong_by_less_than_half_precision_is_found() -> None:
    class Scaled(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.model, self.factor = models.llama().to(torch.bfloat16), factor

        def forward(self, **inputs: Any) -> Any:
            output = self.model(**inputs)
            output.loss = None if output.loss is None else output.loss * self.factor
            return output

    batch = {**models.batch(), **NO_CACHE}
    assert check_isolation(Scaled(1.0), batch).losses_agree
    report = check_isolation(Scaled(1.01), batch)
    assert report.dtype == "bfloat16"
    assert report.losses_agree is False
    assert not report.ok


# --- what is refused --------------------------------------------------------------------------------------------


def test_offsets_repeated_at_the_end_are_no_segments() -> None:
    keys = models.varlen_keys(*models.LENGTHS, 0, 0)
    report = check_isolation(Small(within_documents), {**models.batch(), **keys})
    assert report.ok
    assert report.segments == 4


def test_boundaries_come_from_the_batch_and_else_from_its_positions() -> None:
    batch = {**models.batch(), **NO_CACHE}
    assert check_isolation(models.llama(), batch).boundaries == "position_ids"
    assert check_isolation(models.llama(), {**batch, "seq_lengths": [list(models.LENGTHS)]}).boundaries == "seq_lengths"


REFUSED: dict[str, tuple[Options, str]] = {
    "no ids": ({"input_ids": None}, "needs input_ids"),
    "a row without a batch": ({"input_ids": torch.zeros(22, dtype=torch.long)}, "needs input_ids, a tensor"),
    "no boundaries": ({"position_ids": None}, "nothing says where segments begin"),
    "boundaries that do not fit": ({"seq_lengths": [7, 5]}, "the segments have 12 tokens, but input_ids has 22"),
    "labels of another length": ({"labels": torch.zeros(1, 21, dtype=torch.long)}, "labels do not fit input_ids"),
    "positions without rows": ({"position_ids": torch.arange(22)}, "position_ids do not fit input_ids"),
    # What accelerate's dispatch_batches leaves of the offsets.
    "offsets cut to one": (
        {"cu_seq_lens_q": torch.zeros(1, dtype=torch.int32)},
        "the segments have 0 tokens, but input_ids has 22",
    ),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_a_batch_without_clear_boundaries_is_refused(name: str) -> None:
    change, message = REFUSED[name]
    with pytest.raises(Misuse, match=message):
        check_isolation(models.llama(), {**models.batch(), **NO_CACHE, **change})


def test_a_segment_over_two_rows_is_refused() -> None:
    with pytest.raises(Misuse, match="runs over the end of row 0"):
        check_isolation(models.llama(), {**models.batch(rows=2), **NO_CACHE}, seq_lengths=[7, 5, 12, 20])


def test_a_model_that_does_not_run_is_an_error_of_one_line() -> None:
    batch = models.batch()
    batch["input_ids"] = batch["input_ids"] + models.VOCABULARY
    with pytest.raises(PacktoolError, match="LlamaForCausalLM does not run on this batch: IndexError"):
        check(models.llama(), NO_CACHE, **batch)
