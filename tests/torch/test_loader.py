"""packed_dataloader: the same order for any workers and ranks, and exact resuming anywhere."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from packtool.errors import BadData, Misuse
from packtool.torch import loader as loading
from packtool.torch.collator import VarlenCollator
from packtool.torch.dataset import PackedDataset
from packtool.torch.loader import PackedDataLoader, packed_dataloader
from packtool.torch.sampler import PackSampler
from tests.torch.collators import Step, documents

PACKS = 105


def load(packed: Path, global_batch: int = 8, ranks: int = 1, rank: int = 0, **options: Any) -> PackedDataLoader:
    """A loader that gives documents."""
    return packed_dataloader(
        packed,
        batch_packs=global_batch // ranks,
        rank=rank,
        world_size=ranks,
        collator=documents,
        **{"seed": 11, **options},
    )


def all_ranks(packed: Path, ranks: int, epochs: int = 1, **options: Any) -> list[list[Step]]:
    """Steps by epoch, with the packs of all ranks put together and sorted."""
    loaders = [load(packed, ranks=ranks, rank=rank, **options) for rank in range(ranks)]
    return [
        [sorted(pack for part in step for pack in part) for step in zip(*loaders, strict=True)] for _ in range(epochs)
    ]


@pytest.fixture(scope="module")
def expected(packed: Path) -> list[list[Step]]:
    """Three epochs in one process, as dealt to one rank."""
    loader = load(packed)
    return [list(loader) for _ in range(3)]


def test_the_batches_are_ready_for_a_model(packed: Path) -> None:
    loader = packed_dataloader(packed, batch_packs=4)
    for batch in loader:
        assert batch["input_ids"].shape == batch["labels"].shape == batch["position_ids"].shape
        assert batch["cu_seq_lens_q"][-1] == batch["input_ids"].shape[1]
        assert "attention_mask" not in batch
    assert len(loader) == PACKS // 4


def test_three_epochs_have_every_pack_and_orders_of_their_own(packed: Path) -> None:
    loader = load(packed, drop_last=False)
    seen = []
    for epoch in range(3):
        assert loader.epoch == epoch
        packs = [pack for step in loader for pack in step if pack != (-1,)]
        assert len(packs) == len(set(packs)) == PACKS
        seen.append(packs)
    assert seen[0] != seen[1] != seen[2] != seen[0]


@pytest.mark.parametrize("num_workers", [0, 1, 2, 4])
def test_order_does_not_depend_on_workers(packed: Path, num_workers: int, expected: list[list[Step]]) -> None:
    loader = load(packed, num_workers=num_workers)
    assert [list(loader), list(loader)] == expected[:2]


@pytest.mark.parametrize(("ranks", "num_workers"), [(1, 0), (2, 0), (4, 0), (2, 1), (4, 1), (2, 2)])
@pytest.mark.parametrize("balance", [False, True])
def test_order_does_not_depend_on_ranks(
    packed: Path, ranks: int, num_workers: int, balance: bool, expected: list[list[Step]]
) -> None:
    found = all_ranks(packed, ranks, epochs=2, num_workers=num_workers, balance=balance)
    assert found == [[sorted(step) for step in epoch] for epoch in expected[:2]]


# -- resuming ----------------------------------------------------------------------------------------------


def take(batches: Iterator[Step], count: int) -> list[Step]:
    """The next steps."""
    return [next(batches) for _ in range(count)]


def stopped(packed: Path, epoch: int, step: int, **options: Any) -> dict[str, Any]:
    """The state of a run that was stopped after ``step`` steps of ``epoch``."""
    loader = load(packed, **options)
    for _ in range(epoch):
        list(loader)
    take(iter(loader), step)
    return loader.state_dict()


@given(data=st.data())
@settings(max_examples=40)  # each reads the dataset several times
def test_resuming_anywhere_goes_on_as_if_nothing_had_happened(
    packed: Path, expected: list[list[Step]], data: st.DataObject
) -> None:
    epoch, step = data.draw(st.integers(0, 1)), data.draw(st.integers(0, PACKS // 8))
    state = stopped(packed, epoch, step, ranks=data.draw(st.sampled_from([1, 2, 4])))
    ranks = data.draw(st.sampled_from([1, 2, 4, 8]))
    balance = data.draw(st.booleans())
    # the seed is the state's
    loaders = [load(packed, ranks=ranks, rank=rank, seed=0, balance=balance) for rank in range(ranks)]
    for each in loaders:
        each.load_state_dict(copy.deepcopy(state))
        assert (each.epoch, each.step) == (epoch, step)
    rest = [
        [sorted(pack for part in step for pack in part) for step in zip(*loaders, strict=True)] for _ in range(epoch, 3)
    ]
    wanted = [expected[epoch][step:], *expected[epoch + 1 :]]
    assert rest == [[sorted(step) for step in steps] for steps in wanted]


@pytest.mark.parametrize(("before", "after"), [(2, 0), (0, 2), (1, 4)])
def test_another_number_of_workers_resumes_exactly(
    packed: Path, expected: list[list[Step]], before: int, after: int
) -> None:
    # Workers prefetch, so a state that counted what was asked of them would skip batches.
    state = stopped(packed, epoch=1, step=3, num_workers=before)
    assert state["packs_consumed"] == 24
    loader = load(packed, num_workers=after)
    loader.load_state_dict(state)
    assert list(loader) == expected[1][3:]
    assert list(loader) == expected[2]


def test_resuming_twice_in_an_epoch_is_exact(packed: Path, expected: list[list[Step]]) -> None:
    state = stopped(packed, 0, 4)
    for step in (4, 6, 9):
        loader = load(packed)
        loader.load_state_dict(state)
        batches = iter(loader)
        assert take(batches, 2) == expected[0][step : step + 2]
        if step == 6:
            assert take(batches, 1) == expected[0][8:9]
        state = loader.state_dict()


def test_resuming_reads_no_earlier_pack(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    original = PackedDataset.__getitem__

    def note(self: PackedDataset, index: int) -> Any:
        read.append(index)
        return original(self, index)

    monkeypatch.setattr(PackedDataset, "__getitem__", note)
    list(load(packed))
    whole = list(read)
    read.clear()
    loader = load(packed)
    loader.load_state_dict(load(packed).sampler.state_at(0, 9))
    list(loader)
    assert read == whole[9 * 8 :]


def test_the_state_at_the_end_of_an_epoch_goes_on_with_the_next(packed: Path, expected: list[list[Step]]) -> None:
    loader = load(packed)
    last = [loader.state_dict() for _ in loader][-1]
    after = loader.state_dict()
    assert (last["epoch"], last["packs_consumed"]) == (0, 104)
    assert (after["epoch"], after["packs_consumed"]) == (1, 0)
    for state in (last, after):
        resumed = load(packed)
        resumed.load_state_dict(state)
        resumed_steps = [step for epoch in range(resumed.epoch, 2) for step in _of_epoch(resumed, epoch)]
        assert resumed_steps == expected[1]


def _of_epoch(loader: PackedDataLoader, epoch: int) -> PackedDataLoader:
    loader.set_epoch(epoch)
    return loader


def test_the_last_step_without_dropping_is_counted_in_packs(packed: Path) -> None:
    loader = load(packed, drop_last=False)
    states = [loader.state_dict() for _ in loader]
    assert [state["packs_consumed"] for state in states[-2:]] == [104, 105]
    resumed = load(packed, drop_last=False)
    resumed.load_state_dict(states[-2])
    assert len(list(resumed)) == 1
    resumed.load_state_dict(states[-1])
    assert list(resumed) == []
    assert resumed.epoch == 1


def test_a_state_loads_in_the_middle_of_an_iteration(packed: Path, expected: list[list[Step]]) -> None:
    loader = load(packed)
    batches = iter(loader)
    take(batches, 2)
    state = loader.state_dict()
    take(batches, 5)
    loader.load_state_dict(state)
    take(batches, 1)  # the old iteration no longer counts
    assert loader.state_dict() == state
    assert list(loader) == expected[0][2:]


# -- beginning and ending ----------------------------------------------------------------------------------


def test_looking_at_a_first_batch_costs_nothing(packed: Path, expected: list[list[Step]]) -> None:
    loader = load(packed)
    assert next(iter(loader)) == expected[0][0]
    assert list(loader) == expected[0]
    loader.load_state_dict(stopped(packed, 1, 5))
    assert next(iter(loader)) == expected[1][5]
    assert list(loader) == expected[1][5:]


def test_only_the_newest_iteration_counts(packed: Path) -> None:
    loader = load(packed)
    old, new = iter(loader), iter(loader)
    take(new, 3)
    take(old, 7)
    assert loader.step == 3
    assert len(list(old)) == len(loader) - 7
    assert (loader.epoch, loader.step) == (0, 3)


def test_set_epoch_goes_to_its_start_unless_it_is_the_present_one(packed: Path, expected: list[list[Step]]) -> None:
    loader = load(packed)
    loader.set_epoch(2)
    assert list(loader) == expected[2]
    loader.load_state_dict(stopped(packed, 1, 4))
    loader.set_epoch(1)
    assert list(loader) == expected[1][4:]
    take(iter(loader), 3)
    loader.set_epoch(0)
    assert (loader.epoch, loader.step) == (0, 0)
    assert list(loader) == expected[0]


def test_a_models_randomness_does_not_depend_on_the_loader(packed: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    list(load(packed))
    take(iter(load(packed, num_workers=1)), 1)
    assert torch.equal(torch.rand(3), expected)


def test_batch_tokens_are_whole_packs_of_one_rank(packed: Path) -> None:
    for tokens, packs in ((32, 1), (63, 1), (64, 2), (1000, 31)):
        loader = packed_dataloader(packed, batch_tokens=tokens, rank=1, world_size=2)
        assert loader.global_batch == 2 * packs
    assert loader.dropped_packs == PACKS % 62


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give one of batch_packs and batch_tokens"),
        ({"batch_packs": 1, "batch_tokens": 32}, "give one of batch_packs and batch_tokens"),
        ({"batch_tokens": 31}, "batch_tokens is 31, less than one pack of 32 tokens"),
        ({"batch_tokens": 64.0}, "batch_tokens is 64.0: a whole number"),
        ({"batch_packs": 1, "num_workers": -1}, "num_workers is -1"),
        ({"batch_packs": 1, "multiprocessing_context": "foo"}, "multiprocessing_context is 'foo': here it is one of"),
    ],
)
def test_options_that_make_no_sense_are_refused(packed: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(Misuse, match=message):
        packed_dataloader(packed, **options)


def test_a_folder_without_a_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="not a packed dataset"):
        packed_dataloader(tmp_path, batch_packs=1)


def test_an_error_in_a_worker_keeps_its_type_and_message(packed: Path) -> None:
    loader = packed_dataloader(packed, batch_packs=4, num_workers=1, collator=VarlenCollator(max_segments=1))
    with pytest.raises(Misuse, match=r"segments in a batch, but max_segments is 1"):
        list(loader)


def test_blank_packs_keep_shapes_fixed_to_the_last_step(packed: Path) -> None:
    collator = VarlenCollator(pad_to=64 * 2, max_segments=100, max_length=128)
    shapes = set()
    trained = 0
    for rank in (0, 1):
        for batch in packed_dataloader(
            packed, batch_packs=4, rank=rank, world_size=2, drop_last=False, collator=collator
        ):
            shapes.add((batch["input_ids"].shape, batch["cu_seq_lens_q"].shape, batch["max_length_q"]))
            trained += int((batch["labels"] != -100).sum())
    assert shapes == {((1, 128), (101,), 128)}
    assert trained == PackedDataset(packed).manifest.tokens.trained


# -- other loaders -----------------------------------------------------------------------------------------


def test_a_plain_dataloader_takes_the_sampler(packed: Path, expected: list[list[Step]]) -> None:
    dataset = PackedDataset(packed)
    sampler = PackSampler(dataset, batch_packs=8, seed=11)
    plain = DataLoader(dataset, batch_sampler=sampler, collate_fn=documents, num_workers=1)
    assert list(plain) == expected[0]
    sampler.set_epoch(1)
    batches = iter(plain)
    assert take(batches, 6) == expected[1][:6]
    resumed = PackSampler(dataset, batch_packs=8)
    resumed.load_state_dict(sampler.state_dict(steps=6))
    assert list(DataLoader(dataset, batch_sampler=resumed, collate_fn=documents)) == expected[1][6:]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_torchdata_saves_and_resumes_by_itself(packed: Path, expected: list[list[Step]], num_workers: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def make(seed: int) -> tuple[PackSampler, Any]:
        dataset = PackedDataset(packed)
        sampler = PackSampler(dataset, batch_packs=8, seed=seed)
        return sampler, stateful.StatefulDataLoader(
            dataset, batch_sampler=sampler, collate_fn=documents, num_workers=num_workers
        )

    sampler, loader = make(11)
    assert list(loader) == expected[0]
    sampler.set_epoch(1)
    batches = iter(loader)
    assert take(batches, 5) == expected[1][:5]
    state = loader.state_dict()

    sampler, resumed = make(0)
    resumed.load_state_dict(state)
    assert list(resumed) == expected[1][5:]
    assert list(resumed) == expected[1], "the epoch is the same until another is chosen"
    sampler.set_epoch(2)
    assert list(resumed) == expected[2]


def test_the_loader_is_no_dataloader_that_a_launcher_would_shard_again() -> None:
    assert not issubclass(loading.PackedDataLoader, DataLoader)
