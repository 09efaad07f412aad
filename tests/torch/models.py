"""Tiny random models, batches of several documents, and the plain way to say what is right: each document alone."""

from typing import Any

import torch
import transformers
from torch import Tensor

VOCABULARY = 97
LENGTHS = (7, 5, 1, 9)
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 2,
}


def llama(attention: str = "sdpa", **options: Any) -> Any:
    """A Llama of two layers."""
    return build(transformers.LlamaConfig(**{**SIZES, **options}), attention)


def qwen3(attention: str = "sdpa") -> Any:
    """A Qwen3 of two layers."""
    return build(transformers.Qwen3Config(**SIZES, head_dim=8), attention)


def gpt2(attention: str = "sdpa") -> Any:
    """A GPT-2 of two layers, with learned positions."""
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=64,
        initializer_range=0.3,
        bos_token_id=2,
        eos_token_id=2,
    )
    return build(config, attention)


def build(config: Any, attention: str | None = "sdpa") -> Any:
    """The same random weights every time."""
    torch.manual_seed(0)
    options = {} if attention is None else {"attn_implementation": attention}
    return transformers.AutoModelForCausalLM.from_config(config, **options).eval()


def batch(*lengths: int, rows: int = 1) -> dict[str, Any]:
    """Documents of ``lengths`` end to end in each row; the first third of each does not train."""
    lengths = lengths or LENGTHS
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, VOCABULARY, (rows, sum(lengths)), generator=generator)
    labels = ids.clone()
    start = 0
    for length in lengths:
        labels[:, start : start + max(1, length // 3)] = -100
        start += length
    positions = torch.cat([torch.arange(length) for length in lengths]).expand(rows, -1).contiguous()
    return {"input_ids": ids, "labels": labels, "position_ids": positions}


def varlen_keys(*lengths: int) -> dict[str, Any]:
    """The four keys."""
    lengths = lengths or LENGTHS
    ends = torch.tensor([0, *lengths]).cumsum(0, dtype=torch.int32)
    longest = max(lengths)
    return {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends.clone(), "max_length_q": longest, "max_length_k": longest}


def block_mask(*lengths: int, rows: int = 1) -> Tensor:
    """bool [rows, 1, L, L], token by token."""
    lengths = lengths or LENGTHS
    owner = [number for number, length in enumerate(lengths) for _ in range(length)]
    size = len(owner)
    seen = [[owner[i] == owner[j] and j <= i for j in range(size)] for i in range(size)]
    return torch.tensor(seen)[None, None].expand(rows, 1, size, size).contiguous()


def as_float(mask: Tensor) -> Tensor:
    """0 where a token may look, the lowest number elsewhere."""
    return torch.zeros(mask.shape).masked_fill_(~mask, torch.finfo(torch.float32).min)
