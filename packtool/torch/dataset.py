"""Takes the folder of a packed dataset, gives its packs as tensors, by number, from the Parquet itself.

Memory is bounded by a few row groups. Positions are made of ``seq_lengths``, not read. Knows nothing of batches, ranks
or order.
"""

import operator
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, get_worker_info

from packtool.contract import IGNORED, PADDING_DOC
from packtool.errors import BadData
from packtool.manifest import Manifest, ShardEntry, listed_file, read_manifest
from packtool.parquet.footer import RowGroup
from packtool.shards import (
    check_row_group,
    check_schema,
    open_shard,
    read_columns,
    read_layout,
    read_sums,
)

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Pack = dict[str, torch.Tensor]

BLANK = -(1 << 62)
"""The number of a pack that is in no dataset: ``max_length`` tokens in one segment, none of which trains."""

CACHED_ROW_GROUPS = 16
"""Row groups kept decoded, of 3 MB each; the sampler shuffles within as many, so that each is read once."""

_COLUMNS = ("input_ids", "labels", "seq_lengths", "doc_ids")


@dataclass(frozen=True, slots=True)
class _RowGroup:
    """The packs of a row group laid end to end, and where each lies."""

    input_ids: Int32s
    """int32 [T]."""
    labels: Int32s
    """int32 [T]."""
    position_ids: Int32s
    """int32 [T]."""
    seq_lengths: Int32s
    """int32 [S]."""
    doc_ids: Int64s
    """int64 [S]."""
    token_bounds: list[int]
    """P+1 places: pack p has the tokens from the p-th to before the next."""
    segment_bounds: list[int]
    """The same of its segments."""

    def pack(self, row: int) -> Pack:
        """The pack in this row, in tensors of its own."""
        tokens = slice(self.token_bounds[row], self.token_bounds[row + 1])
        segments = slice(self.segment_bounds[row], self.segment_bounds[row + 1])
        return {
            "input_ids": _tensor(self.input_ids[tokens]),
            "labels": _tensor(self.labels[tokens]),
            "position_ids": _tensor(self.position_ids[tokens]),
            "seq_lengths": _tensor(self.seq_lengths[segments]),
            "doc_ids": _tensor(self.doc_ids[segments]),
        }


@dataclass(frozen=True, slots=True)
class _Footer:
    """That of a shard, as pyarrow reads it and as it is checked."""

    metadata: pq.FileMetaData
    layout: list[RowGroup]


class PackedDataset(Dataset[Pack]):
    """The packs of a dataset folder, map-style.

    ``dataset[n]`` is pack ``n`` (in the order of the shards) as a dictionary of int64 tensors: ``input_ids``,
    ``labels`` and ``position_ids`` [T], ``seq_lengths`` and ``doc_ids`` [S]. ``dataset[BLANK]`` is a pack of padding.

    No file stays open between two reads, so an instance may be forked, pickled to spawned workers, and shared
    between threads.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        """Open the dataset in the folder ``path``; reads the manifest and the sizes of the shards.

        Raises:
            BadData: there is no manifest, or it cannot be trusted; a shard is missing or of another size.
        """
        # Absolute, so that a worker that changes its folder still finds it.
        self.path = Path(path).absolute()
        self.manifest: Manifest = read_manifest(self.path)
        for shard in self.manifest.shards:
            _check_size(self.path, shard)
        packs = [shard.packs for shard in self.manifest.shards]
        self._shard_firsts = [0, *np.cumsum(packs, dtype=np.int64).tolist()]
        if self._shard_firsts[-1] != self.manifest.packs:
            raise BadData(
                f"{self.path}: the shards hold {self._shard_firsts[-1]} packs, but the manifest says "
                f"{self.manifest.packs}: run packtool verify"
            )
        self._group_firsts: dict[int, list[int]] = {}
        self._open_caches()

    def __len__(self) -> int:
        return self.manifest.packs

    def __getitem__(self, index: SupportsIndex) -> Pack:
        """Pack ``index``, counted from the end if negative.

        Raises:
            IndexError: there is no such pack.
            BadData: the shard is damaged.
        """
        number = operator.index(index)
        if number == BLANK:
            return self._blank()
        if number < 0:
            number += len(self)
        if not 0 <= number < len(self):
            raise IndexError(f"pack {index} of a dataset of {len(self)} packs")
        shard = bisect_right(self._shard_firsts, number) - 1
        row = number - self._shard_firsts[shard]
        firsts = self._firsts_of(shard)
        group = bisect_right(firsts, row) - 1
        return self._read(shard, group).pack(row - firsts[group])

    @property
    def max_length(self) -> int:
        """The most tokens in a pack."""
        return self.manifest.max_length

    @property
    def max_segments(self) -> int:
        """The most segments in a pack, padding counted."""
        return self.manifest.max_segments + int(self.manifest.padded)

    @property
    def digest(self) -> str:
        """The dataset's content digest: 64 hexadecimal digits."""
        return self.manifest.content_digest

    def row_group_packs(self) -> Int64s:
        """int64 [G], the packs in each row group, in the order of the shards; reads every shard's footer once."""
        counts = [np.diff(self._firsts_of(shard)) for shard in range(len(self.manifest.shards))]
        return np.concatenate(counts).astype(np.int64)

    def attention_costs(self) -> Int64s:
        """int64 [packs], the sum of the squared segment lengths of each pack, from the footers alone.

        Raises:
            BadData: a shard has no such sums, or not one for each of its packs.
        """
        parts = []
        for shard in self.manifest.shards:
            squares = read_sums(listed_file(self.path, shard.name)).squares
            if len(squares) != shard.packs:
                raise BadData(_other_packs(self.path / shard.name, len(squares), shard.packs))
            parts.append(squares)
        return np.concatenate(parts)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_read", "_footer")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open_caches()

    def _open_caches(self) -> None:
        self._read: Callable[[int, int], _RowGroup] = lru_cache(CACHED_ROW_GROUPS)(self._read_group)
        self._footer: Callable[[int], _Footer] = lru_cache(CACHED_ROW_GROUPS)(self._read_footer)

    def _firsts_of(self, shard: int) -> list[int]:
        """The first row of each row group of a shard, and the number of its rows."""
        if shard not in self._group_firsts:
            counts = [group.rows for group in self._footer(shard).layout]
            self._group_firsts[shard] = [0, *np.cumsum(counts, dtype=np.int64).tolist()]
        return self._group_firsts[shard]

    def _read_footer(self, shard: int) -> "_Footer":
        entry = self.manifest.shards[shard]
        path = self.path / entry.name
        with open_shard(path) as file:
            check_schema(path, file.schema_arrow)
            metadata = file.metadata
        layout = read_layout(path)
        for rows in (metadata.num_rows, sum(group.rows for group in layout)):
            if rows != entry.packs:
                raise BadData(_other_packs(path, rows, entry.packs))
        return _Footer(metadata, layout)

    def _read_group(self, shard: int, group: int) -> _RowGroup:
        path = self.path / self.manifest.shards[shard].name
        first, last = self._firsts_of(shard)[group : group + 2]
        footer = self._footer(shard)
        check_row_group(path, footer.layout, group, self.max_length)
        with open_shard(path, footer.metadata) as file:
            # Workers are processes side by side already, so they leave the other cores to each other, as torch does.
            flat, counts = read_columns(path, file, group, first, _COLUMNS, use_threads=get_worker_info() is None)
        lengths, pack_tokens, pack_segments = flat["seq_lengths"], counts["input_ids"], counts["seq_lengths"]
        if len(pack_tokens) != last - first:
            raise BadData(
                f"{path}: row group {group} has {len(pack_tokens)} packs, but the footer says {last - first}: "
                "run packtool verify"
            )
        _check_boundaries(path, lengths, pack_tokens, pack_segments, first, self.max_length)
        return _RowGroup(
            **flat,
            position_ids=_positions(lengths),
            token_bounds=_bounds(pack_tokens).tolist(),
            segment_bounds=_bounds(pack_segments).tolist(),
        )

    def _blank(self) -> Pack:
        tokenizer = self.manifest.tokenizer
        filler = tokenizer.pad_id if tokenizer.pad_id is not None else tokenizer.eos_id or 0
        length = self.max_length
        return {
            "input_ids": torch.full((length,), filler),
            "labels": torch.full((length,), IGNORED),
            "position_ids": torch.arange(length),
            "seq_lengths": torch.tensor([length]),
            "doc_ids": torch.tensor([PADDING_DOC]),
        }


def _tensor(values: NDArray[Any]) -> torch.Tensor:
    # astype copies, so no tensor keeps its whole row group alive, nor can one be changed through it.
    return torch.from_numpy(values.astype(np.int64))


def _bounds(counts: Int32s) -> Int64s:
    bounds = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=bounds[1:])
    return bounds


def _positions(lengths: Int32s) -> Int32s:
    # [3, 2] is 0 1 2 0 1, which is the running sum of 0 1 1 -2 1
    steps = np.ones(lengths.sum(), dtype=np.int32)
    starts = np.cumsum(lengths) - lengths
    steps[starts[1:]] -= lengths[:-1]
    steps[:1] = 0
    return np.cumsum(steps, out=steps)


def _check_size(folder: Path, shard: ShardEntry) -> None:
    size = listed_file(folder, shard.name).stat().st_size
    if size != shard.bytes:
        raise BadData(
            f"{folder / shard.name}: {size} bytes, but the manifest says {shard.bytes}: "
            "copy the dataset again, or run packtool verify"
        )


def _check_boundaries(
    path: Path, lengths: Int32s, pack_tokens: Int32s, pack_segments: Int32s, first_pack: int, max_length: int
) -> None:
    # An attention kernel takes boundaries on trust, and reads outside its memory where they are wrong.
    wrong = (pack_tokens < 1) | (pack_tokens > max_length) | (pack_segments < 1)
    if not wrong.any():
        starts = _bounds(pack_segments)[:-1]
        wrong |= np.minimum.reduceat(lengths, starts) < 1
        wrong |= np.add.reduceat(lengths, starts, dtype=np.int64) != pack_tokens
    if wrong.any():
        pack = first_pack + int(np.argmax(wrong))
        raise BadData(f"{path}: pack {pack}: the segments do not fit the pack: run packtool verify")


def _other_packs(path: Path, found: int, expected: int) -> str:
    return f"{path}: {found} packs, but the manifest says {expected}: run packtool verify"
