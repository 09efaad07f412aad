"""What trainers make of a dataset as it lies there: ``datasets`` reads the contract's columns, TRL trains on them."""

from functools import partial
from pathlib import Path
from typing import Any

import datasets
import pytest

from packtool.cli import _exit_code
from packtool.manifest import read_manifest
from tests import runs

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
trl = pytest.importorskip("trl")

VOCABULARY = 4096


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of 3 to 40 tokens, whose prompts do not train, in packs of up to 64 in two shards."""
    folder = tmp_path_factory.mktemp("packed")
    records = []
    for n in range(60):
        ids = [5 + (n * 131 + i * 17) % 4000 for i in range(3 + n * n % 38)]
        records.append({"input_ids": ids, "labels": [-100 if i < len(ids) // 3 else id for i, id in enumerate(ids)]})
    source = runs.write_jsonl(folder / "a.jsonl", records)
    runs.run(source, folder / "out", max_length=64, shards=2, strategy="bfd")
    return folder / "out"


@pytest.fixture(scope="module")
def loaded(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The dataset as the card says to load it."""
    return datasets.load_dataset(str(packed), split="train", cache_dir=str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def model() -> Any:
    """A tiny random Llama, the same every time."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        pad_token_id=1,
    )
    return transformers.LlamaForCausalLM(config)


def test_datasets_reads_every_pack_with_the_columns_of_the_contract(packed: Path, loaded: Any) -> None:
    names = {"input_ids", "labels", "position_ids", "seq_lengths", "doc_offsets"}
    expected = {name: datasets.List(datasets.Value("int32")) for name in names}
    assert loaded.features == datasets.Features({**expected, "doc_ids": datasets.List(datasets.Value("int64"))})
    assert list(loaded) == runs.rows(packed)
    assert len(runs.shards(packed)) == 2


def test_datasets_streams_and_picks_columns(packed: Path, tmp_path: Path) -> None:
    streamed = datasets.load_dataset(str(packed), split="train", streaming=True)
    assert list(streamed) == runs.rows(packed)
    two = datasets.load_dataset(
        str(packed), split="train", columns=["input_ids", "seq_lengths"], cache_dir=str(tmp_path)
    )
    assert two.column_names == ["input_ids", "seq_lengths"]


CONFIGS = {
    "packing": {
        "packing": True,
        "packing_strategy": "bfd",
        "dataset_kwargs": {"skip_prepare_dataset": True},
        "per_device_train_batch_size": 1,
    },
    "padding_free": {
        "padding_free": True,
        "max_length": None,
        "dataset_kwargs": {"skip_prepare_dataset": True},
        "per_device_train_batch_size": 2,
    },
}


def trainer(model: Any, dataset: Any, folder: Path, **options: Any) -> Any:
    """TRL's trainer with the configuration of the summary's loading lines."""
    settings = {"use_cpu": True, "report_to": [], "logging_steps": 1, "save_strategy": "no", "disable_tqdm": True}
    config = trl.SFTConfig(output_dir=str(folder), seed=0, bf16=False, **{**settings, **options})
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(str(runs.TOKENIZER))
    return trl.SFTTrainer(model=model, args=config, train_dataset=dataset, processing_class=tokenizer)


def document_losses(model: Any, rows: list[runs.Row]) -> tuple[float, int]:
    """Sum of the losses of every trained token, each document alone in its batch; and how many tokens those are."""
    total, count = 0.0, 0
    for row in rows:
        start = 0
        for length in row["seq_lengths"]:
            ids = torch.tensor([row["input_ids"][start : start + length]])
            labels = torch.tensor([row["labels"][start : start + length]])
            start += length
            logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
            trained = labels[0, 1:] != -100
            losses = torch.nn.functional.cross_entropy(logits[trained], labels[0, 1:][trained], reduction="sum")
            total, count = total + losses.item(), count + int(trained.sum())
    return total, count


@pytest.mark.parametrize("name", list(CONFIGS))
def test_the_loss_of_a_packed_batch_is_that_of_its_documents_alone(
    tmp_path: Path, loaded: Any, model: Any, name: str
) -> None:
    made = trainer(model, loaded, tmp_path, max_steps=1, **CONFIGS[name])
    batches = iter(made.get_train_dataloader())
    seen = 0
    for _ in range(4):
        batch = next(batches)
        rows = [row for row in loaded if _is_in(row, batch)]
        assert len(rows) == CONFIGS[name]["per_device_train_batch_size"]
        with torch.no_grad():
            packed_loss = made.compute_loss(model, dict(batch)).item()
            total, count = document_losses(model, rows)
        assert count == sum(label != -100 for row in rows for label in row["labels"])
        assert packed_loss == pytest.approx(total / count, rel=1e-5)
        seen += sum(len(row["seq_lengths"]) > 1 for row in rows)
    assert seen, "some pack has several documents"


def _is_in(row: runs.Row, batch: Any) -> bool:
    flat = batch["input_ids"].flatten().tolist()
    ids = row["input_ids"]
    return any(flat[at : at + len(ids)] == ids for at in range(len(flat) - len(ids) + 1))


def test_trl_trains_on_the_shards_as_they_are(tmp_path: Path, loaded: Any, model: Any) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    made = trainer(model, loaded, tmp_path, max_steps=12, learning_rate=1e-2, **CONFIGS["packing"])
    assert len(made.train_dataset) == len(loaded), "nothing was packed again"
    made.train()
    losses = [entry["loss"] for entry in made.state.log_history if "loss" in entry]
    assert len(losses) == 12
    assert losses[-1] < losses[0]
    assert any(not torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_the_lines_that_pack_prints_load_the_dataset_as_they_stand(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = runs.write_jsonl(tmp_path / "a.jsonl", [{"text": "word " * 20}] * 30)
    output = tmp_path / "out"
    assert _exit_code(["pack", str(source), "-o", str(output), "-t", str(runs.TOKENIZER), "-L", "64"]) == 0
    printed = capfd.readouterr().out
    code = printed[printed.index("from datasets import") :]
    assert max(map(len, code.replace(str(output), "out").splitlines())) <= 80
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    # What depends on the machine: by default SFTConfig asks for a GPU that can do bfloat16.
    monkeypatch.setattr(trl, "SFTConfig", partial(trl.SFTConfig, use_cpu=True, bf16=False, output_dir=str(tmp_path)))
    found: dict[str, Any] = {}
    exec(code, found)
    assert len(found["train"]) == read_manifest(output).packs
    assert found["args"].packing
    assert found["batch"]["cu_seq_lens_q"][0] == 0
