"""The trainers people have, fed with packs: what works equals the documents alone; what they break is seen."""

from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from torch.utils.data import IterableDataset

from packtool.errors import BadData, Misuse
from packtool.torch import PackedDataset, VarlenCollator, check_isolation
from tests import runs

transformers = pytest.importorskip("transformers")
trl = pytest.importorskip("trl")

from tests.torch import models, reference_kernel  # noqa: E402

Batch = dict[str, Any]


def llama(attention: str = "sdpa") -> Any:
    """With the sample tokenizer's vocabulary; its scores far enough from each other to tell losses apart."""
    return models.llama(attention, vocab_size=4096)


def loss_alone(model: Any, rows: list[Any]) -> float:
    """The mean over the trained tokens of these packs, each document alone in its batch."""
    total, count = 0.0, 0
    for row in rows:
        start = 0
        for length in [int(length) for length in row["seq_lengths"]]:
            ids, labels = (
                torch.as_tensor(row[name])[start : start + length].long() for name in ("input_ids", "labels")
            )
            start += length
            with torch.no_grad():
                logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1]
            total += float(torch.nn.functional.cross_entropy(logits, labels[1:], reduction="sum"))
            count += int((labels[1:] != -100).sum())
    return total / count


# --- transformers.Trainer ---------------------------------------------------------------------------------------


def hf_trainer(model: Any, train: Any, folder: Path, **options: Any) -> Any:
    """A Trainer on the CPU that says nothing."""
    values = {
        "output_dir": str(folder),
        "use_cpu": True,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "logging_steps": 1,
        "max_steps": 2,
        "remove_unused_columns": False,
        "per_device_train_batch_size": 3,
        "learning_rate": 0.0,
        "seed": 0,
        **options,
    }
    arguments = transformers.TrainingArguments(**values)
    return transformers.Trainer(
        model=model, args=arguments, train_dataset=train, data_collator=VarlenCollator(), processing_class=None
    )


def rows_of(packed: Path, batch: Batch) -> list[runs.Row]:
    """The packs that a flattened batch was made of."""
    left = batch["input_ids"][0].tolist()
    rows = {tuple(row["input_ids"]): row for row in runs.rows(packed)}
    found = []
    while left:
        key = next(key for key in rows if tuple(left[: len(key)]) == key)
        found.append(rows[key])
        left = left[len(key) :]
    return found


@pytest.mark.parametrize("workers", [0, 2])
def test_trainer_gives_the_loss_of_the_documents_alone(packed: Path, tmp_path: Path, workers: int) -> None:
    model = llama()
    made = hf_trainer(model, PackedDataset(packed), tmp_path, dataloader_num_workers=workers)
    batch = next(iter(made.get_train_dataloader()))
    rows = rows_of(packed, batch)
    assert len(rows) == 3
    with torch.no_grad():
        loss = float(made.compute_loss(model, dict(batch)))
    assert loss == pytest.approx(loss_alone(model, rows), rel=1e-5)


def test_trainer_s_logged_loss_is_that_of_all_tokens_of_a_step(packed: Path, tmp_path: Path) -> None:
    model = llama()
    made = hf_trainer(model, PackedDataset(packed), tmp_path, max_steps=1, gradient_accumulation_steps=2)
    batches = iter(made.get_train_dataloader())
    rows = rows_of(packed, next(batches)) + rows_of(packed, next(batches))
    made.train()
    logged = [entry["loss"] for entry in made.state.log_history if "loss" in entry]
    assert logged == [pytest.approx(loss_alone(model, rows), abs=2e-3)]


def test_trainer_on_the_flash_path_gets_the_four_keys(packed: Path, tmp_path: Path) -> None:
    with reference_kernel.registered() as flash:
        model = llama(flash)
        made = hf_trainer(model, PackedDataset(packed), tmp_path)
        batch = next(iter(made.get_train_dataloader()))
        assert check_isolation(model, batch).ok
        with torch.no_grad():
            loss = float(made.compute_loss(model, dict(batch)))
        assert loss == pytest.approx(loss_alone(model, rows_of(packed, batch)), rel=1e-5)


@pytest.mark.parametrize("kind", ["torch", "datasets"])
def test_removed_columns_are_an_error_that_names_the_option(packed: Path, tmp_path: Path, kind: str) -> None:
    train = PackedDataset(packed) if kind == "torch" else datasets.Dataset.from_list(runs.rows(packed))
    made = hf_trainer(llama(), train, tmp_path, remove_unused_columns=True)
    with pytest.raises(BadData, match="remove_unused_columns=False"):
        next(iter(made.get_train_dataloader()))


class Stream(IterableDataset[Any]):
    """Packs as an IterableDataset, for which accelerate dispatches batches from one process by default."""

    def __init__(self, packed: Path) -> None:
        self.packs = PackedDataset(packed)

    def __iter__(self) -> Any:
        return (self.packs[number] for number in range(len(self.packs)))


def test_dispatched_batches_are_cut_and_the_check_sees_it(packed: Path, tmp_path: Path) -> None:
    made = hf_trainer(llama(), Stream(packed), tmp_path)
    batch = next(iter(made.get_train_dataloader()))
    assert len(batch["cu_seq_lens_q"]) == 1, "accelerate cut the offsets as if they were rows"
    with pytest.raises(Misuse, match="the segments have 0 tokens"):
        check_isolation(llama(), batch)


def test_a_stream_is_whole_if_batches_are_not_dispatched(packed: Path, tmp_path: Path) -> None:
    made = hf_trainer(llama(), Stream(packed), tmp_path, accelerator_config={"dispatch_batches": False})
    batch = next(iter(made.get_train_dataloader()))
    assert check_isolation(made.model, batch).ok


def test_trainer_switches_the_cache_off(packed: Path, tmp_path: Path) -> None:
    model = llama()
    batch = VarlenCollator()([PackedDataset(packed)[number] for number in range(3)])
    assert check_isolation(model, batch).isolates is False, "the cache is on"
    hf_trainer(model, PackedDataset(packed), tmp_path)
    assert check_isolation(model, batch).ok


# --- TRL --------------------------------------------------------------------------------------------------------

TOLD: dict[str, Any] = {
    "packing": True,
    "packing_strategy": "bfd",
    "dataset_kwargs": {"skip_prepare_dataset": True},
    "per_device_train_batch_size": 1,
}


def sft_trainer(model: Any, train: Any, folder: Path, **options: Any) -> Any:
    """An SFTTrainer on the CPU."""
    values = {
        "output_dir": str(folder),
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "max_steps": 2,
        "seed": 0,
        **options,
    }
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(str(runs.TOKENIZER))
    return trl.SFTTrainer(model=model, args=trl.SFTConfig(**values), train_dataset=train, processing_class=tokenizer)


def load(packed: Path, cache: Path, streaming: bool) -> Any:
    """The dataset, as a user of TRL loads it."""
    columns = ["input_ids", "labels", "seq_lengths"]
    if streaming:
        return datasets.load_dataset(str(packed), split="train", streaming=True).select_columns(columns)
    return datasets.load_dataset(str(packed), split="train", columns=columns, cache_dir=str(cache))


@pytest.mark.parametrize("streaming", [False, True], ids=["map-style", "streaming"])
def test_sft_trainer_gives_the_loss_of_the_documents_alone(packed: Path, tmp_path: Path, streaming: bool) -> None:
    model = llama()
    made = sft_trainer(model, load(packed, tmp_path, streaming), tmp_path, **TOLD)
    batches = iter(made.get_train_dataloader())
    several = 0
    for _ in range(3):
        batch = next(batches)
        rows = rows_of(packed, batch)
        several += sum(len(row["seq_lengths"]) > 1 for row in rows)
        with torch.no_grad():
            loss = float(made.compute_loss(model, dict(batch)))
        assert loss == pytest.approx(loss_alone(model, rows), rel=1e-5)
        report = check_isolation(model, {**batch, "use_cache": False}, seq_lengths=rows[0]["seq_lengths"])
        assert report.ok or (len(rows[0]["seq_lengths"]) == 1 and report.isolates is None)
    assert several


def test_sft_trainer_s_defaults_leak_and_the_check_sees_it(packed: Path, tmp_path: Path) -> None:
    model = llama()
    made = sft_trainer(
        model,
        load(packed, tmp_path, streaming=False),
        tmp_path,
        per_device_train_batch_size=1,
        dataset_kwargs={"skip_prepare_dataset": True},
    )
    batches = iter(made.get_train_dataloader())
    for _ in range(20):
        batch = next(batches)
        (row,) = rows_of(packed, batch)
        if len(row["seq_lengths"]) > 1:
            break
    report = check_isolation(model, {**batch, "use_cache": False}, seq_lengths=row["seq_lengths"])
    assert report.isolates is False
    assert "position_ids are missing" in report.cause
    assert "leave attention_mask out" in report.cause
