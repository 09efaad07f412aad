"""Takes a dataset folder, gives batches in the sampler's order, and a state that counts what the loop has got.

Joins dataset, sampler and collator; the order and what is in a batch are theirs.
"""

import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from os import PathLike
from typing import Any

import torch
from torch.utils.data import DataLoader

from packtool.errors import Misuse
from packtool.torch.collator import Batch, VarlenCollator
from packtool.torch.dataset import Pack, PackedDataset
from packtool.torch.sampler import PackSampler, whole

Collator = Callable[[list[Pack]], Any]


class PackedDataLoader:
    """Iterates over one epoch at a time; ``packed_dataloader`` makes it.

    Every iteration that comes to its end moves on to the next epoch. One that was broken off does not: the next
    begins again where it did, at the epoch's start or where ``load_state_dict`` put it, so looking at a first batch
    costs nothing.
    """

    def __init__(self, sampler: PackSampler, batches: DataLoader[Pack]) -> None:
        """Give ``batches`` (a DataLoader with ``sampler`` as its batch sampler), and keep count."""
        self.sampler = sampler
        self._batches = batches
        self._steps = 0
        self._newest: object = None

    def __iter__(self) -> Iterator[Any]:
        # Only the newest iteration counts: an older one that is still alive has nothing to say of the state.
        self._newest = this = object()
        self._steps = 0
        return self._iterate(this)

    def __len__(self) -> int:
        """Steps in a whole epoch."""
        return len(self.sampler)

    @property
    def dataset(self) -> PackedDataset:
        """Whose packs these are."""
        return self.sampler.dataset

    @property
    def epoch(self) -> int:
        """The epoch of the present iteration, or of the next after a complete one; from 0."""
        return self.sampler.epoch

    @property
    def step(self) -> int:
        """Steps of the epoch whose batches were handed out."""
        return self.sampler.start_step + self._steps

    @property
    def global_batch(self) -> int:
        """Packs of all ranks in one step."""
        return self.sampler.global_batch

    @property
    def dropped_packs(self) -> int:
        """Packs that ``drop_last`` leaves out of an epoch."""
        return self.sampler.dropped_packs

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of ``epoch``; nothing happens if it is the present one."""
        whole("epoch", epoch, 0)
        if epoch != self.epoch:
            self._newest, self._steps = None, 0
            self.sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch that was handed out, however many were prefetched.

        Plain values, equal on every rank: saving one rank's is enough.
        """
        return self.sampler.state_dict(self._steps)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration begin right after what ``state`` counts; nothing before it is read.

        Raises:
            Misuse: the state is of another dataset or global batch; the message says what would fit.
        """
        self.sampler.load_state_dict(state)
        self._newest, self._steps = None, 0

    def _iterate(self, this: object) -> Iterator[Any]:
        for steps, batch in enumerate(self._batches, start=1):
            if self._newest is this:
                self._steps = steps
            yield batch
        if self._newest is this:
            self.set_epoch(self.epoch + 1)


def packed_dataloader(
    path: str | PathLike[str],
    *,
    batch_packs: int | None = None,
    batch_tokens: int | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    seed: int = 0,
    num_workers: int = 0,
    drop_last: bool = True,
    balance: bool = False,
    shuffle: bool = True,
    collator: Collator | None = None,
    pin_memory: bool = False,
    multiprocessing_context: str | None = None,
) -> PackedDataLoader:
    """Batches of the packed dataset in the folder ``path``.

    Args:
        path: the dataset's folder.
        batch_packs: packs of one rank in a step; the global batch is batch_packs x world_size.
        batch_tokens: instead of it, tokens of one rank in a step: batch_packs = batch_tokens // max_length.
        rank: the data-parallel rank; it and ``world_size`` are torch.distributed's or torchrun's if left out.
        world_size: how many data-parallel ranks there are.
        seed: with the epoch, the order.
        num_workers: processes that read ahead; 0 reads in this one.
        drop_last: leave out less than a global batch at the epoch's end; if False, ranks that are out of packs get
            packs without a trained token, so sum the loss over tokens (see docs/loader.md).
        balance: even out attention cost across the ranks of a step.
        shuffle: False keeps the dataset's own order.
        collator: from a list of the dataset's items to a batch; ``VarlenCollator()`` if left out.
        pin_memory: copy batches to pinned memory.
        multiprocessing_context: how workers start (``fork``, ``spawn``, ``forkserver``); torch's default if left out.

    Raises:
        Misuse: an option is out of its range.
        BadData: ``path`` is not a packed dataset, or is damaged.
    """
    dataset = PackedDataset(path)
    if (batch_packs is None) == (batch_tokens is None):
        raise Misuse("give one of batch_packs and batch_tokens")
    if batch_tokens is not None:
        whole("batch_tokens", batch_tokens)
        batch_packs = batch_tokens // dataset.max_length
        if batch_packs < 1:
            raise Misuse(f"batch_tokens is {batch_tokens}, less than one pack of {dataset.max_length} tokens")
    assert batch_packs is not None
    whole("num_workers", num_workers, 0)
    starts = multiprocessing.get_all_start_methods()
    if isinstance(multiprocessing_context, str) and multiprocessing_context not in starts:
        raise Misuse(f"multiprocessing_context is {multiprocessing_context!r}: here it is one of {', '.join(starts)}")
    sampler = PackSampler(
        dataset,
        batch_packs=batch_packs,
        rank=rank,
        world_size=world_size,
        seed=seed,
        drop_last=drop_last,
        balance=balance,
        shuffle=shuffle,
    )
    collate: Callable[[list[Pack]], Batch] | Collator = collator if collator is not None else VarlenCollator()
    batches = DataLoader(
        dataset,
        batch_sampler=sampler,
        num_workers=num_workers,
        collate_fn=collate,
        pin_memory=pin_memory,
        multiprocessing_context=multiprocessing_context if num_workers else None,
        # A DataLoader draws a number for its workers; from a generator of its own, so that a model's randomness is
        # the same however often an iteration begins.
        generator=torch.Generator(),
    )
    return PackedDataLoader(sampler, batches)
