"""The examples of the documentation train, from a dataset that ``packtool pack`` made, on tiny random models."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from packtool.torch import check_isolation, packed_dataloader
from tests import runs
from tests.conftest import ROOT

TINY = ["--layers", "1", "--width", "16", "--heads", "2", "--kv-heads", "1", "--device", "cpu"]


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory, sample_data: Path) -> Path:
    """The first of the sample texts, packed."""
    folder = tmp_path_factory.mktemp("sample") / "out"
    runs.run(sample_data / "text.jsonl", folder, max_length=128, limit=40, strategy="bfd_split", max_left_out="100%")
    return folder


@pytest.fixture(scope="module")
def examples() -> Iterator[Any]:
    """Imports an example by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs" / "examples"))
        yield importlib.import_module
        for name in ("train_varlen", "train_transformers", "train_trl", "gpu_check"):
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama on disk."""
    pytest.importorskip("transformers")
    from tests.torch import models

    folder = tmp_path_factory.mktemp("model")
    models.llama(vocab_size=4096, max_position_embeddings=256).save_pretrained(folder)
    return folder


def run(examples: Any, name: str, *arguments: str) -> list[float]:
    """Losses of an example."""
    module = examples(name)
    losses: list[float] = module.train(module.parse(list(arguments)))
    return losses


def test_train_varlen_learns(examples: Any, sample: Path) -> None:
    losses = run(examples, "train_varlen", str(sample), *TINY, "--steps", "30", "--lr", "0.03", "--warmup", "3")
    assert len(losses) == 30
    assert sum(losses[-5:]) < sum(losses[:5]) - 2.5


@pytest.mark.parametrize("stop", [3, 7])
def test_train_varlen_resumes_to_the_same_losses(examples: Any, sample: Path, tmp_path: Path, stop: int) -> None:
    batches = len(packed_dataloader(sample, batch_packs=20))
    assert 3 < batches < 7, "one stop is in the first epoch, one in the second"
    options = [str(sample), *TINY, "--batch-packs", "20", "--save", str(tmp_path / "checkpoint.pt")]
    whole = run(examples, "train_varlen", *options, "--steps", "9")
    (tmp_path / "checkpoint.pt").unlink()
    first = run(examples, "train_varlen", *options, "--steps", str(stop))
    rest = run(examples, "train_varlen", *options, "--steps", "9", "--resume")
    assert first + rest == whole


def test_the_gpt_of_train_varlen_keeps_documents_apart(examples: Any, sample: Path) -> None:
    torch.manual_seed(0)
    gpt = examples("train_varlen").GPT(4096, layers=2, width=32)
    for parameter in gpt.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    batch = next(iter(packed_dataloader(sample, batch_packs=2)))
    report = check_isolation(gpt, batch)
    assert report.ok, report.cause
    assert report.gradients_agree
    assert report.segments > 2


def test_train_transformers_trains(examples: Any, sample: Path, model: Path, tmp_path: Path) -> None:
    module = examples("train_transformers")
    options = ["--model", str(model), "--output", str(tmp_path), "--cpu", "--steps", "4", "--lr", "0.01"]
    made = module.trainer(module.parse([str(sample), *options]))
    made.train()
    losses = [entry["loss"] for entry in made.state.log_history if "loss" in entry]
    assert len(losses) == 4
    assert losses[-1] < losses[0]
    assert check_isolation(made.model, next(iter(made.get_train_dataloader()))).ok


@pytest.mark.parametrize("way", [[], ["--streaming"]], ids=["map-style", "streaming"])
def test_train_trl_trains(
    examples: Any, sample: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: list[str]
) -> None:
    pytest.importorskip("trl")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    module = examples("train_trl")
    options = ["--model", str(model), "--output", str(tmp_path), "--cpu", "--steps", "8", "--lr", "0.02", *way]
    made = module.trainer(module.parse([str(sample), *options]))
    made.train()
    losses = [entry["loss"] for entry in made.state.log_history if "loss" in entry]
    assert len(losses) == 8
    assert sum(losses[-2:]) < sum(losses[:2])


def test_gpu_check_runs_as_far_as_a_cpu_goes(examples: Any, sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main = examples("gpu_check").main
    assert main(["--cpu", "--tokens", "600", "--max-length", "128"])
    shown = capsys.readouterr().out
    assert shown.count("| packed |") == 3
    assert main(["--cpu", "--tokens", "300", "--max-length", "128", str(sample)])
    assert f"{sample}: " in capsys.readouterr().out
