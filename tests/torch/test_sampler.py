"""PackSampler: global batches that do not depend on the ranks, and states that say what would fit."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtool.errors import Misuse
from packtool.torch.dataset import BLANK, CACHED_ROW_GROUPS, PackedDataset
from packtool.torch.sampler import PackSampler, balanced
from tests import dataset_builder as builder


@pytest.fixture(scope="module")
def dataset(packed: Path) -> PackedDataset:
    """105 packs."""
    return PackedDataset(packed)


def steps(dataset: PackedDataset, global_batch: int, ranks: int, **options: Any) -> list[list[list[int]]]:
    """Packs by step and rank."""
    epoch = options.pop("epoch", 0)
    by_rank = []
    for rank in range(ranks):
        sampler = PackSampler(
            dataset, batch_packs=global_batch // ranks, rank=rank, world_size=ranks, **{"seed": 3, **options}
        )
        sampler.set_epoch(epoch)
        taken = list(sampler)
        assert len(taken) == len(sampler)
        by_rank.append(taken)
    assert len({len(taken) for taken in by_rank}) == 1, "equal steps on every rank"
    return [list(step) for step in zip(*by_rank, strict=True)]


def sets(steps: list[list[list[int]]]) -> list[list[int]]:
    """The packs of each step, whoever has them."""
    return [sorted(pack for rank in step for pack in rank if pack != BLANK) for step in steps]


@pytest.mark.parametrize("balance", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_step_has_the_same_packs_for_any_number_of_ranks(
    dataset: PackedDataset, balance: bool, drop_last: bool
) -> None:
    options: dict[str, Any] = {"drop_last": drop_last, "balance": balance, "epoch": 2}
    alone = sets(steps(dataset, 8, 1, drop_last=drop_last, epoch=2))
    for ranks in (1, 2, 4, 8):
        assert sets(steps(dataset, 8, ranks, **options)) == alone


@pytest.mark.parametrize("balance", [False, True])
def test_every_pack_is_dealt_once_and_every_rank_gets_its_share(dataset: PackedDataset, balance: bool) -> None:
    found = steps(dataset, 12, 4, drop_last=False, balance=balance)
    assert {len(rank) for step in found for rank in step} == {3}
    assert sorted(pack for step in sets(found) for pack in step) == list(range(len(dataset)))
    blanks = [[rank.count(BLANK) for rank in step] for step in found]
    assert blanks[:-1] == [[0] * 4] * (len(found) - 1)
    assert sum(blanks[-1]) == -len(dataset) % 12


def test_blanks_are_spread_over_the_ranks(dataset: PackedDataset) -> None:
    # 105 packs in steps of 16 leave 9, for 4 ranks of 4
    last = steps(dataset, 16, 4, drop_last=False)[-1]
    assert sorted(rank.count(BLANK) for rank in last) == [1, 2, 2, 2]


def test_dropping_leaves_out_less_than_a_global_batch_and_says_how_many(
    dataset: PackedDataset, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packtool.torch.sampler._TOLD", set())
    found = steps(dataset, 16, 2)
    PackSampler(dataset, batch_packs=16)
    assert len(found) == 6
    assert sum(len(step) for step in sets(found)) == 96
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        f"{dataset.path}: 9 of 105 packs, less than a global batch of 16, are left out of each epoch; "
        "drop_last=False keeps them"
    ], "once in a process, by the first rank"
    assert caplog.records[0].levelno == logging.WARNING
    assert PackSampler(dataset, batch_packs=16, drop_last=False).dropped_packs == 0
    kept = steps(dataset, 16, 2, drop_last=False)
    assert sets(kept)[:6] == sets(found), "the same steps before the last"


def test_epochs_and_seeds_differ_and_repeat(dataset: PackedDataset) -> None:
    orders = {
        (seed, epoch): json.dumps(steps(dataset, 8, 2, seed=seed, epoch=epoch)) for seed in (0, 1) for epoch in (0, 1)
    }
    assert len(set(orders.values())) == 4
    assert json.dumps(steps(dataset, 8, 2, seed=1, epoch=1)) == orders[1, 1]


def test_without_shuffling_steps_go_through_the_dataset(dataset: PackedDataset) -> None:
    found = steps(dataset, 8, 2, shuffle=False, epoch=4)
    assert found[0] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [pack for step in found for rank in step for pack in rank] == list(range(104))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_reading_stays_sequential_with_the_cache_of_a_dataset(packed: Path, ranks: int) -> None:
    # Each rank reads each of its row groups once: none comes back after it left the cache.
    groups = len(PackedDataset(packed).row_group_packs())
    misses = 0
    for rank in range(ranks):
        dataset = PackedDataset(packed)
        for packs in PackSampler(dataset, batch_packs=8 // ranks, rank=rank, world_size=ranks, drop_last=False):
            for pack in packs:
                dataset[pack]
        found = dataset._read.cache_info()
        assert found.misses <= groups
        misses += found.misses
    assert groups > CACHED_ROW_GROUPS
    assert misses <= groups * ranks


def test_many_ranks_each_read_few_row_groups(packed: Path) -> None:
    dataset = PackedDataset(packed)
    sizes = dataset.row_group_packs()
    group_of = np.repeat(np.arange(len(sizes)), sizes)
    step = steps(dataset, 64, 16)[0]
    groups = len(set(group_of[[pack for rank in step for pack in rank]].tolist()))
    visits = sum(len(set(group_of[rank].tolist())) for rank in step)
    # Dealt without regard to groups, it would be nearly 64.
    assert visits <= groups + 15 < 40


# -- balance -----------------------------------------------------------------------------------------------


def test_balance_evens_out_the_attention_cost_of_a_step(dataset: PackedDataset) -> None:
    costs = dataset.attention_costs()

    def spread(found: list[list[list[int]]]) -> float:
        return float(np.mean([np.ptp([costs[rank].sum() for rank in step]) for step in found]))

    assert spread(steps(dataset, 24, 4, balance=True)) < spread(steps(dataset, 24, 4)) / 4


def test_the_costliest_pack_goes_to_the_least_burdened_rank_with_room() -> None:
    costs = np.array([9, 1, 8, 2, 7, 3])
    # 9 -> 0, 8 -> 1, 7 -> 1 (8 < 9), 3 -> 0, then rank 0 has 12 and rank 1 has 15: 2 -> 0, and 1 where there is room
    assert balanced(costs, ranks=2, batch_packs=3).tolist() == [0, 1, 1, 0, 1, 0]


@given(st.data(), st.integers(1, 6), st.integers(1, 6))
def test_a_balanced_deal_keeps_to_the_limit(data: st.DataObject, ranks: int, batch_packs: int) -> None:
    most = ranks * batch_packs
    costs = np.array(data.draw(st.lists(st.integers(1, 10**12), max_size=most)), dtype=np.int64)
    dealt = np.bincount(balanced(costs, ranks, batch_packs), minlength=ranks)
    assert len(dealt) == ranks
    assert dealt.max() <= batch_packs
    assert dealt.sum() == len(costs)


# -- states ------------------------------------------------------------------------------------------------


def test_a_state_is_plain_values_and_the_same_on_every_rank(dataset: PackedDataset) -> None:
    states = [PackSampler(dataset, batch_packs=4, rank=rank, world_size=2).state_dict(steps=5) for rank in (0, 1)]
    assert states[0] == states[1] == json.loads(json.dumps(states[0]))
    assert states[0] == {
        "version": 1,
        "dataset": dataset.manifest.content_digest,
        "seed": 0,
        "shuffle": True,
        "epoch": 0,
        "packs_consumed": 40,
        "global_batch": 8,
    }


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_plain_loop_resumes_from_the_step_it_passes(dataset: PackedDataset, drop_last: bool) -> None:
    options: dict[str, Any] = {"batch_packs": 8, "drop_last": drop_last}
    whole = PackSampler(dataset, seed=5, **options)
    whole.set_epoch(2)
    expected = list(whole)
    for taken in (0, 1, 7, len(expected)):
        resumed = PackSampler(dataset, **options)
        resumed.load_state_dict(whole.state_dict(taken))
        resumed.set_epoch(2)  # as a loop does that begins with the epoch it stopped in
        assert list(resumed) == expected[taken:]
        assert resumed.state_dict(len(expected) - taken) == whole.state_dict(len(expected))


def test_another_epoch_begins_at_its_start(dataset: PackedDataset) -> None:
    sampler = PackSampler(dataset, batch_packs=8)
    sampler.load_state_dict(sampler.state_at(epoch=1, step=4))
    assert len(list(sampler)) == len(sampler) - 4
    sampler.set_epoch(2)
    assert len(list(sampler)) == len(sampler)


def test_the_state_of_another_dataset_is_refused(dataset: PackedDataset, tmp_path: Path) -> None:
    builder.make_dataset(tmp_path / "out", builder.sample())
    other = PackSampler(PackedDataset(tmp_path / "out"), batch_packs=2)
    with pytest.raises(Misuse, match=f"another dataset.*content_digest {other.dataset.digest}, not {dataset.digest}"):
        PackSampler(dataset, batch_packs=2).load_state_dict(other.state_dict())


@pytest.mark.parametrize(
    ("batch_packs", "ranks", "fits"),
    [
        (3, 4, r"is 12 \(3 packs x 4 ranks\): with 4 ranks, batch_packs=2 fits"),
        (8, 2, "with 2 ranks, batch_packs=4 fits"),
        (2, 3, "no batch_packs fits with 3 ranks; their number must divide 8"),
    ],
)
def test_the_state_of_another_global_batch_is_refused_naming_what_fits(
    dataset: PackedDataset, batch_packs: int, ranks: int, fits: str
) -> None:
    state = PackSampler(dataset, batch_packs=4, rank=0, world_size=2).state_dict(3)
    with pytest.raises(Misuse, match=f"global batches of 8 packs, this one .*{fits}"):
        PackSampler(dataset, batch_packs=batch_packs, rank=0, world_size=ranks).load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("epoch"), "epoch is None, expected int"),
        (lambda state: state.update(seed="7"), "seed is '7', expected int"),
        (lambda state: state.update(shuffle=1), "shuffle is 1, expected bool"),
        (lambda state: state.update(version=2), "a state of version 2; this packtool reads 1"),
        (lambda state: state.update(packs_consumed=9), "damaged"),
        (lambda state: state.update(packs_consumed=1000), "damaged"),
        (lambda state: state.update(packs_consumed=-8), "damaged"),
        (lambda state: state.update(epoch=-1), "damaged"),
        (lambda state: state.update(global_batch=0), "global batches of 0 packs"),
        (lambda state: state.clear(), "not a state of a PackSampler"),
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(
    dataset: PackedDataset, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    sampler = PackSampler(dataset, batch_packs=8)
    state = sampler.state_at(3, 4)
    change(state)
    with pytest.raises(Misuse, match=message):
        sampler.load_state_dict(state)
    assert sampler.state_dict() == sampler.state_at(0, 0)


def test_what_is_no_state_is_refused(dataset: PackedDataset) -> None:
    with pytest.raises(Misuse, match="not a state of a PackSampler, but a NoneType"):
        PackSampler(dataset, batch_packs=8).load_state_dict(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("epoch", [-1, 1.5, "1", 1 << 70])
def test_what_is_no_epoch_is_refused(dataset: PackedDataset, epoch: Any) -> None:
    with pytest.raises(Misuse, match="epoch is"):
        PackSampler(dataset, batch_packs=8).set_epoch(epoch)


# -- ranks -------------------------------------------------------------------------------------------------


def test_ranks_come_from_the_launcher_unless_given(dataset: PackedDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def placed(**options: int) -> tuple[int, int]:
        sampler = PackSampler(dataset, batch_packs=1, **options)
        return sampler.rank, sampler.world_size

    assert placed() == (0, 1)
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(Misuse, match="WORLD_SIZE is 4, but RANK is missing"):
        placed()
    monkeypatch.setenv("RANK", "3")
    assert placed() == (3, 4)
    assert placed(rank=1, world_size=2) == (1, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_packs": 0}, "batch_packs is 0"),
        ({"batch_packs": 2.0}, "batch_packs is 2.0: a whole number"),
        ({"batch_packs": 1, "seed": "a"}, "seed is 'a': a whole number"),
        ({"batch_packs": 1, "rank": 0.0, "world_size": 1}, "rank is 0.0: a whole number"),
        ({"batch_packs": 1, "rank": 0}, "give both or neither"),
        ({"batch_packs": 1, "rank": 2, "world_size": 2}, "rank is 2, world_size 2"),
        ({"batch_packs": 1, "rank": -1, "world_size": 2}, "rank is -1"),
        ({"batch_packs": 27, "rank": 0, "world_size": 4}, r"105 packs are less than one global batch of 108"),
    ],
)
def test_options_that_make_no_sense_are_refused(dataset: PackedDataset, options: dict[str, Any], message: str) -> None:
    with pytest.raises(Misuse, match=message):
        PackSampler(dataset, **options)


def test_a_dataset_of_less_than_a_global_batch_is_one_step_if_nothing_is_dropped(dataset: PackedDataset) -> None:
    found = steps(dataset, 108, 4, drop_last=False)
    assert sets(found) == [list(range(105))]


def test_a_negative_epoch_is_refused(dataset: PackedDataset) -> None:
    with pytest.raises(Misuse, match="epoch is -1"):
        PackSampler(dataset, batch_packs=1).set_epoch(-1)
