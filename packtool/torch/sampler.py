"""Takes a packed dataset and this rank's place among the ranks, gives the packs of each of its steps.

The order is defined on global batches: step k takes places [kG, (k+1)G) of the epoch's order, whatever the number of
ranks, and a state counts in packs of it. Knows nothing of tensors or of who reads the packs.
"""

import heapq
import logging
import os
from collections.abc import Iterator, Mapping
from numbers import Integral
from typing import Any

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray
from torch.utils.data import Sampler

from packtool.errors import Misuse
from packtool.torch.dataset import BLANK, CACHED_ROW_GROUPS, PackedDataset
from packtool.torch.order import EpochOrder

Int64s = NDArray[np.int64]

_log = logging.getLogger("packtool.torch")

_TOLD: set[tuple[str, int, int]] = set()
"""Datasets whose dropped packs were told of in this process: evaluation loops make a sampler again and again."""
_STATE_VERSION = 1
_LAST_EPOCH = (1 << 62) - 1
_STATE_TYPES: dict[str, type] = {
    "version": int,
    "dataset": str,
    "seed": int,
    "shuffle": bool,
    "epoch": int,
    "packs_consumed": int,
    "global_batch": int,
}


class PackSampler(Sampler[list[int]]):
    """A batch sampler: for every step, the ``batch_packs`` packs of this rank.

    Every rank has the same number of steps. Within a step, packs are dealt so that ranks read as few row groups as
    they can; with ``balance``, so that their attention costs about the same.

    An iteration goes from where ``load_state_dict`` put it, or the epoch's start, to its end. ``set_epoch`` chooses
    the epoch; without it, every iteration is of the same one.
    """

    def __init__(
        self,
        dataset: PackedDataset,
        *,
        batch_packs: int,
        rank: int | None = None,
        world_size: int | None = None,
        seed: int = 0,
        drop_last: bool = True,
        balance: bool = False,
        shuffle: bool = True,
    ) -> None:
        """Sample ``dataset``.

        Args:
            dataset: whose packs; their numbers are also those of ``datasets.load_dataset``'s rows.
            batch_packs: packs of one rank in a step. G, the global batch, is batch_packs x world_size.
            rank: this rank among those that read different packs: the data-parallel rank. With ``world_size`` left
                out, both are torch.distributed's, or torchrun's, or 0 of 1.
            world_size: how many such ranks there are.
            seed: any integer; with the epoch, it is the order.
            drop_last: leave out what is less than a global batch at an epoch's end. Otherwise ranks that are out of
                packs get ``BLANK`` ones.
            balance: even out attention cost across the ranks of each step, which reads more of the files on
                each rank.
            shuffle: False keeps the dataset's own order in every epoch.

        Raises:
            Misuse: an option is out of its range, or the dataset has less than one global batch to drop.
            BadData: a shard's footer is damaged.
        """
        for name, value in (("rank", rank), ("world_size", world_size)):
            if value is not None:
                whole(name, value)
        rank, world_size = _placed(rank, world_size)
        whole("batch_packs", batch_packs, 1)
        whole("seed", seed)
        self.dataset = dataset
        self.batch_packs = batch_packs
        self.rank = rank
        self.world_size = world_size
        self.seed = int(seed)
        self.drop_last = drop_last
        self.shuffle = shuffle
        self.epoch = 0
        self.start_step = 0
        """The step at which an iteration begins."""
        self._group_packs = dataset.row_group_packs()
        self._costs = dataset.attention_costs() if balance else None
        if drop_last and len(dataset) < self.global_batch:
            raise Misuse(
                f"{dataset.path}: {len(dataset)} packs are less than one global batch of {self.global_batch} "
                f"({batch_packs} packs x {world_size} ranks): take smaller batches, or drop_last=False"
            )
        told = (str(dataset.path), len(dataset), self.global_batch)
        if self.dropped_packs and rank == 0 and told not in _TOLD:
            _TOLD.add(told)
            _log.warning(
                "%s: %d of %d packs, less than a global batch of %d, are left out of each epoch; drop_last=False "
                "keeps them",
                dataset.path,
                self.dropped_packs,
                len(dataset),
                self.global_batch,
            )

    @property
    def global_batch(self) -> int:
        """G, the packs of all ranks in one step."""
        return self.batch_packs * self.world_size

    @property
    def dropped_packs(self) -> int:
        """How many packs ``drop_last`` leaves out of an epoch; others in each, where there is shuffling."""
        return len(self.dataset) % self.global_batch if self.drop_last else 0

    def __len__(self) -> int:
        """Steps in a whole epoch, wherever an iteration begins."""
        packs = len(self.dataset)
        return packs // self.global_batch if self.drop_last else -(-packs // self.global_batch)

    def __iter__(self) -> "StepIterator":
        return StepIterator(self)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch: iterations are of it, from its start, until told otherwise.

        Choosing the epoch that already is changes nothing, so a loop may call it after ``load_state_dict``.
        """
        whole("epoch", epoch, 0)
        if epoch > _LAST_EPOCH:
            raise Misuse(f"epoch is {epoch}: at most {_LAST_EPOCH}")
        if epoch != self.epoch:
            self.epoch, self.start_step = epoch, 0

    def state_dict(self, steps: int = 0) -> dict[str, Any]:
        """What to save once the training loop has taken ``steps`` steps of the present iteration.

        The sampler cannot know what was trained on: a DataLoader asks it for batches ahead of time.
        """
        return self.state_at(self.epoch, self.start_step + steps)

    def state_at(self, epoch: int, step: int) -> dict[str, Any]:
        """The state after ``step`` steps of ``epoch``; plain values, equal on every rank."""
        return {
            "version": _STATE_VERSION,
            "dataset": self.dataset.digest,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "epoch": epoch,
            "packs_consumed": min(step * self.global_batch, len(self.dataset)),
            "global_batch": self.global_batch,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration begin right after what ``state`` counts as consumed.

        Seed, shuffling and epoch become those of the state. Ranks, workers, balance and drop_last may differ from
        those of the run that saved it.

        Raises:
            Misuse: it is no state, or one of another dataset or global batch; the message says what would fit.
        """
        self._check_state(state)
        self.seed, self.shuffle, self.epoch = state["seed"], state["shuffle"], state["epoch"]
        self.start_step = -(-state["packs_consumed"] // self.global_batch)

    def order(self, epoch: int) -> EpochOrder:
        """The order of the packs in ``epoch``."""
        return EpochOrder(self._group_packs, self.seed, epoch, CACHED_ROW_GROUPS, self.shuffle)

    def deal(self, order: EpochOrder, step: int) -> list[int]:
        """This rank's packs of ``step``, in the order in which to read them."""
        packs = order.packs(step * self.global_batch, (step + 1) * self.global_batch)
        packs = order.as_read(packs)
        if self._costs is None:
            # Neighbours in a row group go to the same rank. Blanks are spread: 5 packs over 4 ranks are 1 1 1 2.
            first, last = (len(packs) * rank // self.world_size for rank in (self.rank, self.rank + 1))
            mine = packs[first:last]
        else:
            mine = packs[balanced(self._costs[packs], self.world_size, self.batch_packs) == self.rank]
        return [*mine.tolist(), *[BLANK] * (self.batch_packs - len(mine))]

    def _check_state(self, state: Mapping[str, Any]) -> None:
        if not isinstance(state, Mapping):
            raise Misuse(f"not a state of a PackSampler, but a {type(state).__name__}")
        for name, kind in _STATE_TYPES.items():
            if type(state.get(name)) is not kind:
                raise Misuse(f"not a state of a PackSampler: {name} is {state.get(name)!r}, expected {kind.__name__}")
        if state["version"] != _STATE_VERSION:
            raise Misuse(f"a state of version {state['version']}; this packtool reads {_STATE_VERSION}")
        if state["dataset"] != self.dataset.digest:
            raise Misuse(
                f"the state is of another dataset than {self.dataset.path}: it fits the one whose manifest has "
                f"content_digest {state['dataset']}, not {self.dataset.digest}"
            )
        consumed, batch = state["packs_consumed"], state["global_batch"]
        if batch != self.global_batch:
            fits = (
                f"with {self.world_size} ranks, batch_packs={batch // self.world_size} fits"
                if batch > 0 and batch % self.world_size == 0
                else f"no batch_packs fits with {self.world_size} ranks; their number must divide {batch}"
            )
            raise Misuse(
                f"the state counts in global batches of {batch} packs, this one is {self.global_batch} "
                f"({self.batch_packs} packs x {self.world_size} ranks): {fits}"
            )
        whole = consumed % batch == 0 or consumed == len(self.dataset)
        if not 0 <= state["epoch"] <= _LAST_EPOCH or not 0 <= consumed <= len(self.dataset) or not whole:
            raise Misuse(f"a damaged state: epoch {state['epoch']}, {consumed} packs of {len(self.dataset)} consumed")


class StepIterator(Iterator[list[int]]):
    """The steps of one iteration. torchdata's StatefulDataLoader saves and restores it by itself."""

    def __init__(self, sampler: PackSampler) -> None:
        self._sampler = sampler
        self._begin(sampler.epoch, sampler.start_step)

    def __iter__(self) -> "StepIterator":
        return self

    def __next__(self) -> list[int]:
        if self._step >= len(self._sampler):
            raise StopIteration
        packs = self._sampler.deal(self._order, self._step)
        self._step += 1
        return packs

    def state_dict(self) -> dict[str, Any]:
        """The state after the steps given out so far."""
        return self._sampler.state_at(self._epoch, self._step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after what ``state`` counts; the sampler's next iteration begins where it would have."""
        epoch, start_step = self._sampler.epoch, self._sampler.start_step
        self._sampler.load_state_dict(state)
        self._begin(self._sampler.epoch, self._sampler.start_step)
        self._sampler.start_step = start_step if self._sampler.epoch == epoch else 0

    def _begin(self, epoch: int, step: int) -> None:
        self._epoch = epoch
        self._step = step
        self._order = self._sampler.order(epoch)


def balanced(costs: Int64s, ranks: int, batch_packs: int) -> Int64s:
    """Deal packs to ranks, at most ``batch_packs`` each, so that the ranks' costs are about even.

    Longest processing time first (Graham, 1969) with a limit on the number: the costliest pack that is left goes to
    the rank that has the least so far and still has room; ties go to the earlier pack and the lower rank.

    Args:
        costs: int64 [P], P at most ranks x batch_packs.
        ranks: how many there are.
        batch_packs: the most for each.

    Returns:
        int64 [P], the rank of each pack.
    """
    dealt = np.empty(len(costs), dtype=np.int64)
    open_ranks = [(0, rank, 0) for rank in range(ranks)]
    for pack in np.argsort(-costs, kind="stable").tolist():
        cost, rank, packs = heapq.heappop(open_ranks)
        dealt[pack] = rank
        if packs + 1 < batch_packs:
            heapq.heappush(open_ranks, (cost + int(costs[pack]), rank, packs + 1))
    return dealt


def whole(name: str, value: Any, least: int | None = None) -> None:
    """Raises Misuse where an option is no whole number, or below the ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or (least is not None and value < least):
        raise Misuse(f"{name} is {value!r}: a whole number{'' if least is None else f', at least {least}'}")


def _placed(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Rank and number of ranks as given, or as the process was launched."""
    if (rank is None) != (world_size is None):
        raise Misuse("rank and world_size go together: give both or neither")
    if rank is None or world_size is None:
        if dist.is_available() and dist.is_initialized():
            return dist.get_rank(), dist.get_world_size()
        # Before init_process_group, torchrun's variables are all there is; without them all ranks would read alike.
        launched = os.environ.get("WORLD_SIZE", "1")
        if launched == "1":
            return 0, 1
        try:
            rank, world_size = int(os.environ["RANK"]), int(launched)
        except (KeyError, ValueError):
            raise Misuse(
                f"WORLD_SIZE is {launched}, but RANK is missing or no number: give rank and world_size"
            ) from None
    if not 0 <= rank < world_size:
        raise Misuse(f"rank is {rank}, world_size {world_size}: ranks count from 0 and are below world_size")
    return rank, world_size
