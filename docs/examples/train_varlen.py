"""Train a small GPT on a packed dataset in plain torch: no padding, and no document sees another.

    packtool pack sample_data/text.jsonl -o packed -t sample_data/tokenizer -L 1024
    python docs/examples/train_varlen.py packed --save checkpoint.pt
    python docs/examples/train_varlen.py packed --save checkpoint.pt --resume --steps 400

The same file runs on a CPU, where attention takes a block mask, and on a GPU, where it takes a varlen kernel in
bfloat16.
"""

import argparse
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from packtool import PacktoolError
from packtool.torch import packed_dataloader, varlen_attention


class Attention(nn.Module):
    """Grouped-query attention within each document."""

    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, width // heads
        self.qkv = nn.Linear(width, (heads + 2 * kv_heads) * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], cu_seqlens: Tensor, max_seqlen: int) -> Tensor:
        parts = [self.heads, self.kv_heads, self.kv_heads]
        q, k, v = self.qkv(x).view(len(x), -1, self.size).split(parts, dim=1)
        q, k = rotate(q, rotation), rotate(k, rotation)
        return self.out(varlen_attention(q, k, v, cu_seqlens, max_seqlen).flatten(1))


class Block(nn.Module):
    """Attention and a gated feed-forward layer, each after a norm and around a skip."""

    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(width), Attention(width, heads, kv_heads)
        self.mlp_norm = nn.RMSNorm(width)
        self.gate_up, self.down = nn.Linear(width, 8 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], cu_seqlens: Tensor, max_seqlen: int) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotation, cu_seqlens, max_seqlen)
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)


class GPT(nn.Module):
    """Takes a batch of VarlenCollator as keywords, gives logits [1, T, V]."""

    def __init__(self, vocabulary: int, layers: int = 4, width: int = 128, heads: int = 4, kv_heads: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads, kv_heads) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        size = width // heads
        self.register_buffer("frequencies", 10_000.0 ** (-torch.arange(0, size, 2) / size), persistent=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, cu_seq_lens_q: Tensor, max_length_q: int, **_: object
    ) -> Tensor:
        # position_ids restart in every document, so its first token is at position 0 wherever it lies in the row.
        angles = position_ids[0, :, None] * self.frequencies
        rotation = angles.cos()[:, None], angles.sin()[:, None]
        x = self.embedding(input_ids[0])
        for block in self.blocks:
            x = block(x, rotation, cu_seq_lens_q, max_length_q)
        return functional.linear(self.norm(x), self.embedding.weight)[None]


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary positions: [T, heads, size] turned by the angles of each token, in the dtype it came in."""
    cos, sin = rotation
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Summed over the trained tokens. Labels are not shifted: the token at t is predicted from the one at t - 1."""
    # The first token of a document has label -100, so none is predicted from the document before it.
    return functional.cross_entropy(logits[0, :-1].float(), labels[0, 1:], ignore_index=-100, reduction="sum")


def to_device(batch: dict[str, Tensor | int], device: str) -> dict[str, Tensor | int]:
    """The tensors of a batch on ``device``; max_length stays a Python int."""
    return {
        name: each.to(device, non_blocking=True) if isinstance(each, Tensor) else each for name, each in batch.items()
    }


def save(path: Path, **state: object) -> None:
    """Write a checkpoint whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    torch.save(state, partial)
    partial.replace(path)


def train(options: argparse.Namespace) -> list[float]:
    """Train, and return the loss of every step."""
    torch.manual_seed(options.seed)
    loader = packed_dataloader(
        options.dataset, batch_packs=options.batch_packs, seed=options.seed, num_workers=options.workers
    )
    if not len(loader):
        raise SystemExit(f"{options.dataset} has too few packs for a batch of {options.batch_packs}")
    vocabulary = loader.dataset.manifest.tokenizer.vocabulary_size
    model = GPT(vocabulary, options.layers, options.width, options.heads, options.kv_heads).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, betas=(0.9, 0.95), weight_decay=0.1)
    step = 0
    if options.resume:
        state = torch.load(options.save, map_location=options.device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        step = state["step"]
        print(f"resumed at step {step}, epoch {loader.epoch}, batch {loader.step} of {len(loader)}")

    precision: AbstractContextManager[object] = nullcontext()
    if options.device.startswith("cuda"):
        precision = torch.autocast("cuda", dtype=torch.bfloat16)
    losses: list[float] = []
    begun, tokens = time.perf_counter(), 0
    while step < options.steps:
        for batch in loader:
            batch = to_device(batch, options.device)
            trained = (batch["labels"] != -100).sum()
            with precision:
                loss = loss_of(model(**batch), batch["labels"]) / trained
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for group in optimizer.param_groups:
                group["lr"] = options.lr * min(1.0, (step + 1) / options.warmup)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            losses.append(loss.item())
            tokens += batch["input_ids"].numel()
            if step % options.log_every == 0 or step == options.steps:
                speed = tokens / (time.perf_counter() - begun)
                mean = sum(losses[-options.log_every :]) / len(losses[-options.log_every :])
                print(f"step {step:5}  epoch {loader.epoch}  loss {mean:.3f}  {speed:,.0f} tokens/s")
            if options.save and (step % options.save_every == 0 or step == options.steps):
                states = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "loader": loader.state_dict(),
                }
                save(options.save, step=step, **states)
            if step >= options.steps:
                break
    return losses


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train a small GPT on a packed dataset.")
    parser.add_argument("dataset", help="folder that packtool pack made")
    parser.add_argument("--steps", type=int, default=200, help="optimizer steps in all, those before a resume counted")
    parser.add_argument("--batch-packs", type=int, default=1, help="packs in a step")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--warmup", type=int, default=20, help="steps")
    parser.add_argument("--workers", type=int, default=0, help="processes that read ahead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path, help="checkpoint file")
    parser.add_argument("--save-every", type=int, default=50, help="steps")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint, in the middle of its epoch")
    parser.add_argument("--log-every", type=int, default=20, help="steps, over which the printed loss is a mean")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(arguments)
    if options.resume and not options.save:
        parser.error("--resume needs --save, the checkpoint to go on from")
    return options


if __name__ == "__main__":
    try:
        train(parse())
    except PacktoolError as error:  # a folder that is no dataset, a batch that is too large: one line says it
        raise SystemExit(f"error: {error}") from None
