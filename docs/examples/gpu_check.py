"""Check varlen attention on the machine at hand, and measure what packing saves there.

    python docs/examples/gpu_check.py                    # synthetic lengths
    python docs/examples/gpu_check.py packed --tokens 200000   # the lengths of a packed dataset

Needs no more than a GPU and packtool with torch; without a GPU it runs small, to see that it runs. Prints tables.
"""

import argparse
import gc
import itertools
import statistics
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from train_varlen import GPT, loss_of  # the example beside this one

from packtool.packing import STRATEGIES
from packtool.torch import PackedDataset, varlen_attention
from packtool.torch.attention import choose_backend

VOCABULARY = 4096
Lengths = list[int]


@dataclass(frozen=True)
class Setting:
    """Where and how large."""

    device: str
    dtype: torch.dtype
    max_length: int
    tokens: int
    layers: int
    width: int
    heads: int
    repeats: int

    @property
    def cuda(self) -> bool:
        return self.device.startswith("cuda")


def settings(options: argparse.Namespace) -> Setting:
    """Sizes of a small but real model on a GPU; tiny ones on a CPU."""
    if torch.cuda.is_available() and not options.cpu:
        return Setting("cuda", torch.bfloat16, options.max_length, options.tokens or 2_000_000, 12, 768, 12, 3)
    return Setting("cpu", torch.float32, min(options.max_length, 512), options.tokens or 4_000, 2, 64, 2, 1)


# --- lengths --------------------------------------------------------------------------------------------------


def synthetic(name: str, tokens: int, most: int) -> Lengths:
    """Document lengths, about ``tokens`` in all: like a mix of instructions, like chat of one turn, like articles."""
    median, spread = {"instructions": (350, 1.0), "short chat": (90, 0.7), "articles": (1_500, 0.8)}[name]
    drawn = np.random.default_rng(0).lognormal(np.log(median), spread, size=tokens // 20 + 16)
    lengths = np.clip(drawn.astype(np.int64), 2, most)
    return lengths[: int(np.searchsorted(lengths.cumsum(), tokens)) + 1].tolist()


def of_dataset(path: str, tokens: int, most: int) -> Lengths:
    """The lengths of a dataset's segments, from its first packs."""
    lengths: Lengths = []
    dataset = PackedDataset(path)
    for number in range(len(dataset)):
        lengths += [min(length, most) for length in dataset[number]["seq_lengths"].tolist() if length > 1]
        if sum(lengths) >= tokens:
            break
    return lengths


# --- is it right? ---------------------------------------------------------------------------------------------


def draw(lengths: Lengths, setting: Setting) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys, values and offsets; eight query heads on two key heads."""
    generator = torch.Generator().manual_seed(0)

    def one(heads: int) -> Tensor:
        return torch.randn(sum(lengths), heads, 64, generator=generator).to(setting.device, setting.dtype)

    offsets = torch.tensor([0, *lengths]).cumsum(0, dtype=torch.int32).to(setting.device)
    return one(8), one(2), one(2), offsets


def one_by_one(q: Tensor, k: Tensor, v: Tensor, lengths: Lengths) -> Tensor:
    """Each document alone in a call of SDPA, in float32."""
    parts = []
    for q1, k1, v1 in zip(*(each.float().split(lengths) for each in (q, k, v)), strict=True):
        heads_first = [each.transpose(0, 1)[None] for each in (q1, k1, v1)]
        out = functional.scaled_dot_product_attention(*heads_first, is_causal=True, enable_gqa=True)
        parts.append(out[0].transpose(0, 1))
    return torch.cat(parts)


def check_numbers(setting: Setting) -> list[list[str]]:
    """The largest error of outputs and gradients, next to that of rounding the exact answer to the dtype."""
    lengths = synthetic("instructions", min(setting.tokens, 16_384), setting.max_length)
    q, k, v, offsets = draw(lengths, setting)
    for each in (q, k, v):
        each.requires_grad_()
    weights = torch.randn(q.shape, generator=torch.Generator().manual_seed(1)).to(setting.device)
    out = varlen_attention(q, k, v, offsets, max(lengths))
    found = [out, *torch.autograd.grad((out.float() * weights).sum(), (q, k, v))]
    exact = one_by_one(q, k, v, lengths)
    right = [exact, *torch.autograd.grad((exact * weights).sum(), (q, k, v))]
    rows = []
    for name, a, b in zip(("output", "gradient of q", "of k", "of v"), found, right, strict=True):
        error = float((a.float() - b.float()).abs().max().detach())
        rows.append(
            [name, f"{error:.1e}", f"{float((b.to(setting.dtype).float() - b.float()).abs().max().detach()):.1e}"]
        )
        allowed = 2e-2 * float(b.abs().max().detach()) if setting.dtype != torch.float32 else 1e-4
        rows[-1].append("ok" if error <= allowed else f"WRONG, at most {allowed:.1e}")
    return rows


def check_isolation_bitwise(setting: Setting) -> list[list[str]]:
    """Other numbers in one document must change no bit of any other's output; nor must NaN, where a kernel skips it."""
    lengths = synthetic("instructions", min(setting.tokens, 16_384), setting.max_length)
    q, k, v, offsets = draw(lengths, setting)
    before = varlen_attention(q, k, v, offsets, max(lengths))
    changed = len(lengths) // 2
    start = sum(lengths[:changed])
    inside = slice(start, start + lengths[changed])
    rows = []
    # A mask multiplies what it hides by 0, which makes NaN of NaN, so there only numbers can be tried.
    values = {"other numbers": 3.0} | ({} if choose_backend(q) == "sdpa" else {"NaN": float("nan")})
    for name, value in values.items():
        q2, k2, v2 = (each.clone() for each in (q, k, v))
        for each in (q2, k2, v2):
            each[inside] = value
        after = varlen_attention(q2, k2, v2, offsets, max(lengths))
        others = torch.ones(len(q), dtype=torch.bool, device=q.device)
        others[inside] = False
        same = torch.equal(before[others], after[others])
        rows.append(
            [f"{name} in document {changed} of {len(lengths)}", "no bit of others changed" if same else "LEAKS"]
        )
    return rows


# --- what does it save? ---------------------------------------------------------------------------------------


Row = Lengths
"""The segments of one call of the model; their sum is what it computes."""


@dataclass(frozen=True)
class Layout:
    """The same documents, laid out one way: rows of segments, and how many of all tokens are documents'."""

    name: str
    rows: list[Row]
    real: int


def layouts(lengths: Lengths, most: int, batch: int = 8) -> Iterator[Layout]:
    """Padded in the order they come, padded after sorting all by length, and packed; about as many tokens a step."""
    real = sum(lengths)
    for name, order in (("padded", lengths), ("padded, sorted", sorted(lengths))):
        chunks = [order[at : at + batch] for at in range(0, len(order), batch)]
        yield Layout(name, [[max(chunk)] * len(chunk) for chunk in chunks], real)
    packing = STRATEGIES["bfd"].plan(np.array(lengths, dtype=np.int32), most, None)
    packs, at = [], 0
    for count in packing.counts.tolist():
        packs.append([lengths[item] for item in packing.items[at : at + count].tolist()])
        at += count
    # As many packs in a row as padded rows have tokens on average, so that steps are of one size.
    per_row = max(1, round(batch * statistics.mean(lengths) / most))
    joined = [list(itertools.chain(*packs[at : at + per_row])) for at in range(0, len(packs), per_row)]
    yield Layout("packed", joined, real)


def step(model: GPT, optimizer: torch.optim.Optimizer, row: Row, setting: Setting) -> None:
    """Forward, backward and update on random tokens in segments of these lengths."""
    generator = torch.Generator().manual_seed(sum(row))
    ids = torch.randint(0, VOCABULARY, (1, sum(row)), generator=generator).to(setting.device)
    positions = torch.cat([torch.arange(length) for length in row])[None].to(setting.device)
    offsets = torch.tensor([0, *row]).cumsum(0, dtype=torch.int32).to(setting.device)
    precision: AbstractContextManager[object] = nullcontext()
    if setting.cuda:
        precision = torch.autocast("cuda", dtype=setting.dtype)
    with precision:
        loss = loss_of(model(ids, positions, offsets, max(row)), ids) / ids.numel()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def measure(layout: Layout, setting: Setting) -> list[str]:
    """Seconds for all documents once, tokens of documents a second, and peak memory."""
    torch.manual_seed(0)
    model = GPT(VOCABULARY, setting.layers, setting.width, setting.heads, setting.heads).to(setting.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    step(model, optimizer, max(layout.rows, key=sum), setting)  # the largest first: memory is there afterwards
    wait = torch.cuda.synchronize if setting.cuda else _nothing
    seconds = []
    for _ in range(setting.repeats):
        wait()
        begun = time.perf_counter()
        for row in layout.rows:
            step(model, optimizer, row, setting)
        wait()
        seconds.append(time.perf_counter() - begun)
    peak = f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if setting.cuda else "-"
    computed = sum(sum(row) for row in layout.rows)
    best = statistics.median(seconds)
    share = f"{100 * layout.real / computed:.1f} %"
    return [layout.name, str(len(layout.rows)), share, f"{best:.2f} s", f"{layout.real / best:,.0f}", peak]


def _nothing() -> None:
    pass


def compare(lengths: Lengths, setting: Setting) -> list[list[str]]:
    """One row for each layout, with its speed relative to the first."""
    rows = []
    for layout in layouts(lengths, setting.max_length):
        gc.collect()
        if setting.cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        rows.append(measure(layout, setting))
        speed = [float(row[4].replace(",", "")) for row in rows]
        rows[-1].append(f"{speed[-1] / speed[0]:.2f}")
    return rows


# --- printing -------------------------------------------------------------------------------------------------


def table(title: str, head: list[str], rows: list[list[str]]) -> None:
    """As Markdown, to be pasted."""
    print(f"\n{title}\n\n| {' | '.join(head)} |\n|{' --- |' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")


def main(arguments: list[str] | None = None) -> bool:
    """Run everything; True if every number was right."""
    parser = argparse.ArgumentParser(description="Check varlen attention, and measure packing against padding.")
    parser.add_argument("datasets", nargs="*", help="packed datasets, whose lengths to take; else synthetic ones")
    parser.add_argument("--max-length", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=0, help="tokens to measure with")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args(arguments)
    setting = settings(options)
    name = torch.cuda.get_device_name() if setting.cuda else "CPU"
    probe = torch.zeros(1, 1, 64, device=setting.device, dtype=setting.dtype)
    print(f"{name}, torch {torch.__version__}, {str(setting.dtype)[6:]}, backend {choose_backend(probe)}")

    numbers, isolation = check_numbers(setting), check_isolation_bitwise(setting)
    table("varlen_attention against SDPA on each document alone", ["what", "error", "rounding", ""], numbers)
    table("Isolation", ["changed", "found"], isolation)
    head = ["layout", "steps", "documents' share", "time", "their tokens/s", "peak memory", "speed"]
    for source in options.datasets or ["instructions", "short chat", "articles"]:
        read = of_dataset if options.datasets else synthetic
        lengths = read(source, setting.tokens, setting.max_length)
        title = (
            f"{source}: {len(lengths):,} documents, {sum(lengths):,} tokens, {setting.layers} layers of {setting.width}"
        )
        table(title, head, compare(lengths, setting))
    return all(row[-1] == "ok" for row in numbers) and all("LEAKS" not in row[-1] for row in isolation)


if __name__ == "__main__":
    raise SystemExit(0 if main() else 1)
