"""One forward pass as it can be varied: what a model is given, in parts that can be exchanged, and how to run it.

Knows what a batch may hold and how to put it together anew; judges nothing.
"""

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from packtool.errors import Misuse, PacktoolError
from packtool.torch.attention import block_mask

_NUMBERS = (bool, int, float)
VARLEN_KEYS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")


@dataclass(frozen=True, slots=True)
class Segment:
    row: int
    start: int
    stop: int

    @property
    def place(self) -> tuple[int, slice]:
        """Index of its tokens in a tensor [B, L, ...]."""
        return self.row, slice(self.start, self.stop)


@dataclass(frozen=True, slots=True)
class Trial:
    """What the model is given, in parts that can be exchanged."""

    ids: Tensor
    segments: tuple[Segment, ...]
    positions: Tensor | None = None
    labels: Tensor | None = None
    mask: Tensor | None = None
    varlen: Mapping[str, Any] = field(default_factory=dict)
    seq_idx: Tensor | None = None
    others: Mapping[str, Any] = field(default_factory=dict)

    def inputs(self) -> dict[str, Any]:
        """The keywords, without labels."""
        named = {
            "input_ids": self.ids,
            "position_ids": self.positions,
            "attention_mask": self.mask,
            "seq_idx": self.seq_idx,
        }
        return (
            {name: value for name, value in named.items() if value is not None} | dict(self.varlen) | dict(self.others)
        )

    @property
    def lengths(self) -> list[int]:
        return [segment.stop - segment.start for segment in self.segments]

    def alone(self, segment: Segment) -> "Trial":
        """One segment in a batch of its own, with the same keys as far as one segment needs them."""
        length = segment.stop - segment.start
        only = Segment(0, 0, length)
        single = replace(
            self,
            ids=self.ids[segment.row : segment.row + 1, segment.start : segment.stop],
            segments=(only,),
            labels=None
            if self.labels is None
            else self.labels[segment.row : segment.row + 1, segment.start : segment.stop],
            mask=None,
        )
        if self.positions is not None:
            single = replace(single, positions=torch.arange(length, device=self.ids.device)[None])
        if self.seq_idx is not None:
            single = single.with_seq_idx()
        return single.with_varlen() if self.varlen else single

    def with_other_tokens(self, *segments: Segment) -> "Trial":
        """Every token of the segments replaced by another one that occurs in the batch."""
        pool, places = torch.unique(self.ids, return_inverse=True)
        if len(pool) < 2:
            pool = torch.stack([pool[0], torch.where(pool[0] > 0, pool[0] - 1, pool[0] + 1)])
        ids = self.ids.clone()
        for segment in segments:
            generator = torch.Generator().manual_seed(segment.start + 1)
            steps = torch.randint(1, len(pool), (segment.stop - segment.start,), generator=generator)
            ids[segment.place] = pool[(places[segment.place] + steps.to(ids.device)) % len(pool)].to(ids.dtype)
        return replace(self, ids=ids)

    def with_positions_of(self, segment: Segment, positions: Tensor) -> "Trial":
        """The segment at other positions, int64 [n], if positions are given at all."""
        if self.positions is None:
            return self
        changed = self.positions.expand_as(self.ids).clone()
        changed[segment.place] = positions.to(changed)
        return replace(self, positions=changed)

    def with_varlen(self) -> "Trial":
        """The four varlen keys of these segments; the batch must be one row."""
        ends = torch.tensor([0, *itertools.accumulate(self.lengths)], dtype=torch.int32, device=self.ids.device)
        longest = max(self.lengths)
        return replace(self, varlen=dict(zip(VARLEN_KEYS, (ends, ends, longest, longest), strict=True)))

    def with_seq_idx(self) -> "Trial":
        """The number of its segment at every token, int32 [B, L], from 0 in each row."""
        seq_idx = torch.zeros_like(self.ids, dtype=torch.int32)
        firsts: dict[int, int] = {}
        for number, segment in enumerate(self.segments):
            seq_idx[segment.place] = number - firsts.setdefault(segment.row, number)
        return replace(self, seq_idx=seq_idx)

    def with_restarting_positions(self) -> "Trial":
        positions = torch.zeros_like(self.ids)
        for segment in self.segments:
            positions[segment.place] = torch.arange(segment.stop - segment.start, device=positions.device)
        return replace(self, positions=positions)

    def with_block_mask(self, dtype: torch.dtype) -> "Trial":
        """A float mask [B, 1, L, L]: 0 where a token may look, the lowest number elsewhere."""
        rows, length = self.ids.shape
        mask = torch.full((rows, 1, length, length), torch.finfo(dtype).min, dtype=dtype, device=self.ids.device)
        for row in range(rows):
            lengths = [segment.stop - segment.start for segment in self.segments if segment.row == row]
            offsets = torch.tensor([0, *itertools.accumulate(lengths)], device=self.ids.device)
            mask[row, 0].masked_fill_(block_mask(offsets, length), 0)
        return replace(self, mask=mask)

    def with_option(self, **options: Any) -> "Trial":
        return replace(self, others={**self.others, **options})

    def flattened(self) -> "Trial":
        """All rows in one, end to end, with positions and the varlen keys."""
        rows, length = self.ids.shape
        segments = tuple(
            Segment(0, each.row * length + each.start, each.row * length + each.stop) for each in self.segments
        )
        labels = None if self.labels is None else self.labels.reshape(1, -1)
        flat = Trial(self.ids.reshape(1, rows * length), segments, labels=labels, others=self.others)
        return flat.with_restarting_positions().with_varlen()


def read_batch(
    model: nn.Module, batch: Mapping[str, Any], seq_lengths: Sequence[int] | Tensor | None
) -> tuple[Trial, str, tuple[str, ...]]:
    """The batch in parts, where its boundaries are from, and the keys that the model does not take."""
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    values = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in batch.items()}
    ids = values.pop("input_ids", None)
    if not isinstance(ids, Tensor) or ids.dim() != 2:
        raise Misuse("check_isolation: the batch needs input_ids, a tensor [rows, tokens]")
    positions = values.get("position_ids")
    for name in ("labels", "position_ids"):
        given = values.get(name)
        fits = isinstance(given, Tensor) and given.dim() == 2 and given.shape[-1] == ids.shape[-1]
        if given is not None and not (fits and given.shape[0] in ({1, len(ids)} if name != "labels" else {len(ids)})):
            raise Misuse(f"check_isolation: {name} do not fit input_ids, which are of shape {tuple(ids.shape)}")
    own = values.pop("seq_lengths", None)
    # The last one tells a model by how many tokens of the whole optimizer step, other batches included, to divide.
    for name in ("doc_ids", "doc_offsets", "num_items_in_batch"):
        values.pop(name, None)
    if seq_lengths is not None or own is not None:
        boundaries = "seq_lengths"
        lengths = _flat(seq_lengths if seq_lengths is not None else own)
    elif values.get("cu_seq_lens_q") is not None:
        boundaries = "cu_seq_lens_q"
        lengths = values["cu_seq_lens_q"].diff().tolist()
    elif isinstance(positions, Tensor):
        boundaries = "position_ids"
        starts = [*torch.nonzero(positions.expand_as(ids).flatten() == 0).flatten().tolist(), ids.numel()]
        lengths = [stop - start for start, stop in itertools.pairwise(starts)]
    else:
        raise Misuse(
            "check_isolation: nothing says where segments begin: give seq_lengths=, or cu_seq_lens_q in the batch"
        )
    segments = _segments(lengths, ids)
    unused = tuple(name for name in values if not takes(model, name) and name != "labels")
    given = Trial(
        ids=ids,
        segments=segments,
        positions=values.pop("position_ids", None),
        labels=values.pop("labels", None),
        mask=values.pop("attention_mask", None),
        seq_idx=values.pop("seq_idx", None),
        varlen={name: values.pop(name) for name in VARLEN_KEYS if values.get(name) is not None},
        others=values,
    )
    return given, boundaries, unused


def _flat(lengths: Any) -> list[int]:
    values = lengths.flatten().tolist() if isinstance(lengths, Tensor) else list(lengths)
    return [int(length) for part in values for length in (part if isinstance(part, list | tuple) else [part])]


def _segments(lengths: Sequence[int], ids: Tensor) -> tuple[Segment, ...]:
    rows, length = ids.shape
    if sum(lengths) != rows * length or any(each < 0 for each in lengths):
        raise Misuse(f"check_isolation: the segments have {sum(lengths)} tokens, but input_ids has {rows * length}")
    segments, start = [], 0
    for each in lengths:
        if each:  # offsets repeated at the end, to keep their number fixed, are no segments
            row = start // length
            if start + each > (row + 1) * length:
                raise Misuse(f"check_isolation: a segment of {each} tokens runs over the end of row {row}")
            segments.append(Segment(row, start - row * length, start - row * length + each))
        start += each
    return tuple(segments)


Forward = Callable[[Trial], Tensor]
"""The logits [B, L, V] of a trial, without a graph. Raises PacktoolError where the model does not run on it."""


# -- running the model -------------------------------------------------------------------------------------


def takes(model: nn.Module, name: str) -> bool:
    """Whether the model's forward has a parameter ``name``, or takes any."""
    parameters = inspect.signature(model.forward).parameters
    return name in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def run(model: nn.Module, given: Trial, *, labels: Tensor | None = None) -> Any:
    """What the model returns, given those of the trial's keys that it takes."""
    inputs = given.inputs() | ({} if labels is None else {"labels": labels})
    return model(**{name: value for name, value in inputs.items() if takes(model, name)})


def forward_of(model: nn.Module) -> Forward:
    """How the model runs on a trial."""

    def forward(given: Trial) -> Tensor:
        try:
            with torch.no_grad():
                return logits_of(run(model, given))
        except PacktoolError:
            raise
        except Exception as error:
            raise PacktoolError(f"{type(model).__name__} does not run on this batch: {first_line(error)}") from error

    return forward


def logits_of(output: Any) -> Tensor:
    """[B, L, V], from what a model returned."""
    found = getattr(output, "logits", output)
    if isinstance(found, tuple | list):
        found = found[0]
    if not isinstance(found, Tensor) or found.dim() != 3:
        raise PacktoolError("the model gives no logits [rows, tokens, vocabulary] that could be compared")
    return found


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, so that nothing is random; every module goes back to its own mode, numbers and buffers.

    Rotary positions that scale with the row keep their frequencies in a buffer, and the length they are for beside it.
    """
    numbers = [
        (module, {name: value for name, value in vars(module).items() if type(value) in _NUMBERS})
        for module in model.modules()
    ]
    buffers = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    model.eval()
    try:
        yield
    finally:
        for module, values in numbers:
            vars(module).update(values)
        with torch.no_grad():
            for module, name, buffer, copy in buffers:
                module._buffers[name] = buffer
                if not torch.equal(buffer, copy):
                    buffer.copy_(copy)


@contextmanager
def precision(model: nn.Module, given: Trial) -> Iterator[torch.dtype]:
    """The model in float32 if it is one of transformers' and its kernel takes that; else as it is, or in bfloat16.

    A model in float64 stays so, which tells rounding from a faint leak.
    """
    own = next((each.dtype for each in model.parameters() if each.is_floating_point()), torch.float32)
    device = given.ids.device.type
    if torch.is_autocast_enabled(device):
        yield torch.get_autocast_dtype(device)
        return
    if not attention_of(model) or not _is_plain(model) or own == torch.float64:
        yield own
        return
    refused = ""
    with _cast(model, torch.float32):
        try:
            forward_of(model)(given.alone(given.segments[0]))
        except PacktoolError as error:
            refused = str(error)
        if not _names_a_dtype(refused):
            yield torch.float32
            return
    if own != torch.float32:
        yield own
        return
    with _cast(model, torch.bfloat16):
        yield torch.bfloat16


def _names_a_dtype(message: str) -> bool:
    return any(name in message.lower() for name in ("fp16", "bf16", "float16", "half", "dtype", "data type"))


def _is_plain(model: nn.Module) -> bool:
    """Whether its parameters may be cast: neither quantized nor sharded."""
    whole = all(type(each) in (nn.Parameter, Tensor) for each in model.parameters())
    return whole and not getattr(model, "is_quantized", False)


@contextmanager
def _cast(model: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Floating point parameters in ``dtype``, and for float32 the buffers too; without a trace afterwards."""
    # In half precision buffers stay: those in float32 (frequencies of rotary positions) are meant to be.
    tensors = [*model.parameters(), *(model.buffers() if dtype == torch.float32 else ())]
    saved = [(each, each.data) for each in tensors if each.is_floating_point() and each.dtype != dtype]
    try:
        for each, data in saved:
            each.data = data.to(dtype)
        yield
    finally:
        for each, data in saved:
            each.data = data


def attention_of(model: nn.Module) -> str:
    """transformers' name of its attention implementation; empty for other models."""
    name = getattr(getattr(model, "config", None), "_attn_implementation", None)
    return name if isinstance(name, str) else ""


def takes_no_dense_mask(model: nn.Module) -> bool:
    """Whether some attention of the model is flex: given a 4-D mask, torch's writes outside its memory on a CPU."""
    configs = (getattr(module, "config", None) for module in model.modules())
    return any(getattr(config, "_attn_implementation", None) == "flex_attention" for config in configs)


# -- comparing ---------------------------------------------------------------------------------------------


def difference(a: Tensor, b: Tensor) -> float:
    """The largest difference; infinite where only one of the two is a number."""
    wide = torch.promote_types(a.dtype, torch.float32)
    apart = (a.to(wide) - b.to(wide)).abs()
    return float(torch.nan_to_num(apart, nan=float("inf")).max()) if apart.numel() else 0.0


def first_line(error: BaseException) -> str:
    """Type and first line of an error, for a message."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
