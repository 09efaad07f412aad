"""Takes packs, gives the batch a model and its attention kernel need: one flattened row, or a dense block mask.

Boundaries come from ``seq_lengths`` alone. Knows nothing of files, order or ranks.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import torch

from packtool.contract import IGNORED
from packtool.errors import BadData, Misuse

MOST_SEGMENTS = 65_535
"""As many as the grid of one kernel call can take."""

Batch = dict[str, torch.Tensor | int]


@dataclass(frozen=True, slots=True, kw_only=True)
class VarlenCollator:
    """Puts packs together to one batch.

    Takes items of ``PackedDataset`` or rows of ``datasets.load_dataset``; each needs ``input_ids``, ``labels`` and
    ``seq_lengths``. ``position_ids`` are made of the lengths, whatever a row has.

    A batch has ``input_ids``, ``labels``, ``position_ids`` int64 [1, T]; ``cu_seq_lens_q`` and ``cu_seq_lens_k``
    int32 [S+1], the offset of each segment, then T; ``max_length_q`` and ``max_length_k``, Python ints. There is no
    ``attention_mask``: with one, even of ones, several models attend across documents.

    With ``dense`` it has the three [B, L] instead, one pack a row, and ``attention_mask`` float [B, 1, L, L].
    """

    seq_idx: bool = False
    """Add ``seq_idx`` int32 [1, T] (dense: [B, L]), the number of each token's segment, for recurrent models."""

    pad_to: int | None = None
    """Pad the tail to exactly this many tokens: T, or L if dense. A longer batch is refused."""

    pad_to_multiple_of: int | None = None
    """Pad the tail to the next multiple of this."""

    pad_id: int = 0
    """The token of the tail's padding, which is one segment of its own with labels -100."""

    max_segments: int | None = None
    """Repeat the last offset until ``cu_seq_lens`` has this many + 1 entries. A batch of more segments is refused;
    the padded tail is a segment too."""

    max_length: int | None = None
    """Give this as ``max_length_q`` and ``max_length_k``. A longer segment is refused."""

    shift_labels: bool = False
    """Give each token its successor in the document as label, and -100 to the last: for trainers that do not
    shift inside the model (torchtitan). transformers and TRL shift themselves."""

    dense: bool = False
    """One pack a row and a block mask in the sense of eager and sdpa attention: 0 where a token sees another, the
    least float elsewhere. It takes B x L x L floats."""

    mask_dtype: torch.dtype = torch.float32
    """The type of the dense mask: that of the model. Never bool, which eager attention adds up as a number."""

    def __post_init__(self) -> None:
        """Raises Misuse: an option is out of its range, or two exclude each other."""
        for name in ("pad_to", "pad_to_multiple_of", "max_segments", "max_length"):
            value = getattr(self, name)
            if value is not None and (not _is_whole(value) or value < 1):
                raise Misuse(f"{name} is {value!r}: a whole number, at least 1")
        if self.pad_to is not None and self.pad_to_multiple_of is not None:
            raise Misuse("pad_to and pad_to_multiple_of exclude each other: give one of them")
        if not _is_whole(self.pad_id) or self.pad_id < 0:
            raise Misuse(f"pad_id is {self.pad_id!r}: a token of the vocabulary")
        if self.max_segments is not None and self.max_segments > MOST_SEGMENTS:
            raise Misuse(f"max_segments is {self.max_segments}: one kernel call takes at most {MOST_SEGMENTS}")
        if self.dense and (self.max_segments is not None or self.max_length is not None):
            raise Misuse("max_segments and max_length are of the varlen keys, which a dense batch does not have")
        if not self.mask_dtype.is_floating_point:
            raise Misuse(f"mask_dtype is {self.mask_dtype}: a float type (a bool mask is silently wrong in eager)")

    def __call__(self, packs: Sequence[Mapping[str, Any]]) -> Batch:
        """The batch of ``packs``, in their order.

        Raises:
            BadData: a pack lacks a column, or its segments do not fit its tokens.
            Misuse: the batch is larger than ``pad_to``, ``max_segments``, ``max_length`` or a kernel allows.
        """
        if isinstance(packs, Mapping):
            raise Misuse("one pack, or a batch put together already; expected a list of packs")
        if not len(packs):
            raise Misuse("a batch of no packs")
        rows = [self._shifted(_Row.of(pack)) for pack in packs]
        return self._dense(rows) if self.dense else self._flattened(rows)

    def _flattened(self, rows: list["_Row"]) -> Batch:
        row = self._padded(_Row.joined(rows), self._room(sum(row.size for row in rows)))
        segments = len(row.lengths)
        if segments > MOST_SEGMENTS:
            raise Misuse(f"{segments} segments in a batch, one kernel call takes {MOST_SEGMENTS}: take fewer packs")
        if self.max_segments is not None and segments > self.max_segments:
            raise Misuse(
                f"{segments} segments in a batch, but max_segments is {self.max_segments}: "
                f"set it to {segments} or more, or take fewer packs"
            )
        longest = int(row.lengths.max())
        if self.max_length is not None and longest > self.max_length:
            raise Misuse(
                f"a segment of {longest} tokens (the tail's padding is one), but max_length is {self.max_length}: "
                f"set it to {longest} or more, or pad less"
            )
        offsets = torch.full(((self.max_segments or segments) + 1,), row.size, dtype=torch.int32)
        offsets[0] = 0
        offsets[1 : segments + 1] = row.lengths.cumsum(0)
        max_length = self.max_length or longest
        batch: Batch = {
            "input_ids": row.input_ids[None],
            "labels": row.labels[None],
            "position_ids": row.position_ids[None],
            "cu_seq_lens_q": offsets,
            # A tensor of its own: what is done in place to one must not reach the other.
            "cu_seq_lens_k": offsets.clone(),
            "max_length_q": max_length,
            "max_length_k": max_length,
        }
        if self.seq_idx:
            batch["seq_idx"] = row.segment_numbers()[None]
        return batch

    def _dense(self, rows: list["_Row"]) -> Batch:
        size = self._room(max(row.size for row in rows))
        rows = [self._padded(row, size) for row in rows]
        numbers = torch.stack([row.segment_numbers() for row in rows])
        sees = (numbers[:, None, :, None] == numbers[:, None, None, :]).tril_()
        mask = torch.zeros(sees.shape, dtype=self.mask_dtype).masked_fill_(~sees, torch.finfo(self.mask_dtype).min)
        batch: Batch = {
            "input_ids": torch.stack([row.input_ids for row in rows]),
            "labels": torch.stack([row.labels for row in rows]),
            "position_ids": torch.stack([row.position_ids for row in rows]),
            "attention_mask": mask,
        }
        if self.seq_idx:
            batch["seq_idx"] = numbers
        return batch

    def _room(self, size: int) -> int:
        """The tokens that ``size`` tokens are padded to."""
        if self.pad_to is not None:
            if size > self.pad_to:
                raise Misuse(f"{size} tokens in a row, but pad_to is {self.pad_to}: set it to {size} or more")
            return self.pad_to
        multiple = self.pad_to_multiple_of or 1
        return -(-size // multiple) * multiple

    def _padded(self, row: "_Row", size: int) -> "_Row":
        # One segment, never one a token, and never none: kernels leave rows past the last offset uninitialised.
        missing = size - row.size
        if not missing:
            return row
        padding = _Row(
            torch.full((missing,), self.pad_id),
            torch.full((missing,), IGNORED),
            torch.arange(missing),
            torch.tensor([missing]),
        )
        return _Row.joined([row, padding])

    def _shifted(self, row: "_Row") -> "_Row":
        if not self.shift_labels:
            return row
        labels = row.labels.roll(-1)
        labels[row.lengths.cumsum(0) - 1] = IGNORED
        return _Row(row.input_ids, labels, row.position_ids, row.lengths)


@dataclass(frozen=True, slots=True)
class _Row:
    """Tokens with their boundaries, laid end to end."""

    input_ids: torch.Tensor
    labels: torch.Tensor
    position_ids: torch.Tensor
    lengths: torch.Tensor
    """int64 [S], all at least 1, that sum to the tokens."""

    @classmethod
    def of(cls, pack: Mapping[str, Any]) -> "_Row":
        """A pack with its columns checked against each other."""
        if not isinstance(pack, Mapping):
            raise BadData(
                f"a pack is a dictionary of columns, but this is a {type(pack).__name__}: load the rows as Python, "
                "numpy or torch, without with_format('arrow') or 'pandas'"
            )
        lengths = _column(pack, "seq_lengths")
        input_ids = _column(pack, "input_ids")
        labels = _column(pack, "labels")
        if not lengths.numel() or int(lengths.min()) < 1 or int(lengths.sum()) != input_ids.numel():
            raise BadData(
                f"a pack of {len(input_ids)} tokens whose seq_lengths sum to {int(lengths.sum())}, or hold one below "
                "1: run packtool verify on the dataset"
            )
        if len(labels) != len(input_ids):
            raise BadData(f"a pack of {len(input_ids)} tokens with {len(labels)} labels")
        return cls(input_ids, labels, _positions(lengths), lengths)

    @classmethod
    def joined(cls, rows: Iterable["_Row"]) -> "_Row":
        """Rows end to end."""
        columns = zip(*((row.input_ids, row.labels, row.position_ids, row.lengths) for row in rows), strict=True)
        return cls(*(torch.cat(column) for column in columns))

    @property
    def size(self) -> int:
        """Tokens."""
        return len(self.input_ids)

    def segment_numbers(self) -> torch.Tensor:
        """int32 [T], the number of each token's segment, from 0."""
        return torch.repeat_interleave(torch.arange(len(self.lengths), dtype=torch.int32), self.lengths)


def _column(pack: Mapping[str, Any], name: str) -> torch.Tensor:
    if name not in pack:
        # HF Trainer drops what the model's forward does not name, seq_lengths first of all.
        raise BadData(
            f"a pack without {name} (it has {', '.join(pack) or 'nothing'}): load that column, "
            "and set remove_unused_columns=False in transformers' TrainingArguments"
        )
    values = pack[name]
    if isinstance(values, np.ndarray):
        values = values.copy()  # for torch warns of arrays that cannot be written
    try:
        column = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):
        raise BadData(f"a pack whose {name} are no list of whole numbers, but {_kind(values)}") from None
    # An empty list has no numbers that could be whole.
    if column.dim() != 1 or (column.numel() and (column.is_floating_point() or column.dtype == torch.bool)):
        what = f"of {column.dtype} and shape {list(column.shape)}".replace("torch.", "")
        raise BadData(f"a pack whose {name} are {what}; expected whole numbers [n], one row a pack")
    return column.to(torch.int64)


def _kind(values: Any) -> str:
    if isinstance(values, list | tuple) and values:
        return f"a {type(values).__name__} of {type(values[0]).__name__}"
    return f"a {type(values).__name__}"


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _positions(lengths: torch.Tensor) -> torch.Tensor:
    # [3, 2]: 0 1 2 3 4 minus the start of each segment, 0 0 0 3 3, is 0 1 2 0 1
    starts = lengths.cumsum(0) - lengths
    return torch.arange(int(lengths.sum())) - torch.repeat_interleave(starts, lengths)
