"""``packtool verify OUT --model PATH``: the verdict on the command line; nothing of a model's folder is run."""

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from packtool import cli
from packtool.errors import BadData, Misuse, PacktoolError
from packtool.torch.local_model import _candidates, _narrow, check_dataset
from tests import dataset_builder

transformers = pytest.importorskip("transformers")
from safetensors.torch import load_file, save_file  # noqa: E402

from tests.torch import models  # noqa: E402

SIZES: dict[str, Any] = {**models.SIZES, "vocab_size": 4096}
BLOOM: dict[str, Any] = {"hidden_size": 32, "n_layer": 3, "n_head": 4, "vocab_size": 4096}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a config and weights."""
    folder = tmp_path_factory.mktemp("llama")
    models.build(transformers.LlamaConfig(**SIZES)).save_pretrained(folder)
    return folder


def config_only(folder: Path, config: Any) -> Path:
    """A folder with a config alone."""
    config.save_pretrained(folder)
    assert [path.name for path in folder.iterdir()] == ["config.json"]
    return folder


def verify(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output and error of ``packtool verify``."""
    code = cli._exit_code(["verify", *map(str, arguments)])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_a_llama_with_sdpa_keeps_documents_apart(packed: Path, llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, shown, _ = verify(capsys, packed, "--model", llama)
    assert code == 0
    assert "ok    isolation      LlamaForCausalLM, sdpa, float32, 6 segments" in shown
    assert "LlamaForCausalLM: keeps documents apart" in shown
    assert all(len(line) <= 80 for line in shown.splitlines() if str(packed) not in line)


def test_a_bloom_is_seen_leaking(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config_only(tmp_path / "bloom", transformers.BloomConfig(**BLOOM))
    code, shown, _ = verify(capsys, packed, "--model", path)
    assert code == 1
    assert "FAIL  isolation      BloomForCausalLM, eager, float32" in shown
    assert "leaks        segment" in shown
    assert "does not take the boundaries" in shown
    assert all(len(line) <= 80 for line in shown.splitlines() if str(packed) not in line)
    assert shown.endswith("BloomForCausalLM: LEAKS between documents\n")


def test_json_has_the_report_under_isolation(packed: Path, llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, shown, _ = verify(capsys, packed, "--model", llama, "--json")
    values = json.loads(shown)
    assert code == 0
    assert values["ok"] is values["isolation"]["ok"] is values["isolation"]["isolates"] is True
    assert values["isolation"]["leaks"] == []
    assert {"checks", "packs", "path", "segments", "tokens"} <= values.keys()


def test_json_of_a_leak_is_not_ok(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config_only(tmp_path / "bloom", transformers.BloomConfig(**BLOOM))
    code, shown, _ = verify(capsys, packed, "--model", path, "--json")
    values = json.loads(shown)
    assert code == 1
    assert values["ok"] is values["isolation"]["isolates"] is False
    assert values["isolation"]["leaks"][0].keys() == {"source", "target", "difference"}
    assert all(check["ok"] for check in values["checks"])


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_the_attention_that_is_asked_for_is_looked_at(packed: Path, llama: Path, attention: str) -> None:
    report = check_dataset(packed, llama, attention)
    assert report.attention == attention
    assert report.ok


def test_from_a_config_alone_two_layers_or_one_of_each_kind_are_made(packed: Path, tmp_path: Path) -> None:
    config = transformers.Gemma3TextConfig(
        **{**SIZES, "num_hidden_layers": 12, "vocab_size": 50_000}, head_dim=8, sliding_window=16
    )
    assert "full_attention" not in config.layer_types[:2]
    path = config_only(tmp_path / "gemma", config)
    seen: list[Any] = []

    def watch(module: Any, *_: Any) -> None:
        if type(module).__name__ == "Gemma3ForCausalLM":
            seen.append(module.config)

    handle = torch.nn.modules.module.register_module_forward_pre_hook(watch)
    try:
        report = check_dataset(packed, path)
        by_file = check_dataset(packed, path / "config.json")
    finally:
        handle.remove()
    assert report.ok
    assert report == by_file, "random weights are the same every time"
    assert seen[0].layer_types == ["sliding_attention", "sliding_attention", "full_attention"]
    assert seen[0].num_hidden_layers == 3
    assert seen[0].vocab_size < 50_000


def test_the_longest_segment_stands_beside_the_others(tmp_path: Path) -> None:
    lengths = (5, 9, 300, 7)
    parts = [dataset_builder.Stretch(dataset_builder.document(n, most), 0, most) for n, most in enumerate(lengths)]
    dataset_builder.make_dataset(tmp_path / "long", dataset_builder.Recipe(400, [parts]))
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
    config = {**SIZES, "max_position_embeddings": 200, "rope_parameters": rope, "initializer_range": 0.02}
    path = config_only(tmp_path / "dynamic", transformers.LlamaConfig(**config))
    report = check_dataset(tmp_path / "long", path)
    assert report.tokens == sum(lengths)
    assert report.isolates is False
    assert "largest position in the row" in report.cause
    plain = config_only(tmp_path / "plain", transformers.LlamaConfig(**SIZES))
    assert check_dataset(tmp_path / "long", plain).ok
    short = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=100, vocab_size=4096)
    with pytest.raises(PacktoolError, match=r"it has 100 positions, but the longest segment of .* has 300 tokens"):
        check_dataset(tmp_path / "long", config_only(tmp_path / "short", short))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("CwmConfig", {}),  # takes no None for a token's number
        ("Gemma3nTextConfig", {}),  # its last layers share keys with earlier ones
        ("LlamaConfig", {"hidden_size": 16384, "intermediate_size": 53248, "num_attention_heads": 128}),
    ],
)
def test_a_small_model_is_made_of_any_config(name: str, options: dict[str, Any]) -> None:
    made = getattr(transformers, name, None)
    if made is None:
        pytest.skip(f"transformers {transformers.__version__} has no {name}")

    def make(config: Any) -> Any:
        return transformers.AutoModelForCausalLM.from_config(config)

    for small in _candidates(made(**options)):
        with contextlib.suppress(Exception):  # whatever this config does not bear
            narrow = _narrow(Path("config.json"), small, make)
            break
    with torch.device("meta"):
        assert sum(each.numel() for each in make(narrow).parameters()) <= 2**29


def test_experts_are_made_few(packed: Path, tmp_path: Path) -> None:
    config = transformers.Qwen3MoeConfig(**SIZES, head_dim=8, num_experts=64, moe_intermediate_size=16)
    assert check_dataset(packed, config_only(tmp_path / "moe", config)).ok


def test_a_model_of_another_tokenizer_is_refused(packed: Path, tmp_path: Path) -> None:
    path = config_only(tmp_path / "small", transformers.LlamaConfig(**models.SIZES))
    with pytest.raises(Misuse, match=r"vocabulary has 97 entries, but .* packed with another model's tokenizer"):
        check_dataset(packed, path)


def test_a_dataset_of_one_segment_is_refused(tmp_path: Path, llama: Path) -> None:
    whole = dataset_builder.Stretch(dataset_builder.document(0, 10), 0, 10)
    dataset_builder.make_dataset(tmp_path / "one", dataset_builder.Recipe(16, [[whole]]))
    with pytest.raises(BadData, match="one segment, into which nothing can leak"):
        check_dataset(tmp_path / "one", llama)


def test_an_unsound_dataset_is_reported_before_any_model_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset_builder.make_dataset(tmp_path / "out", dataset_builder.sample())

    def lose(columns: dict[str, list[int]]) -> None:
        columns["position_ids"][3] = 9

    dataset_builder.change_shards(tmp_path / "out", lose)
    code, shown, _ = verify(capsys, tmp_path / "out", "--model", tmp_path / "no model here")
    assert code == 1
    assert "NOT sound" in shown


# --- what a folder may not do -----------------------------------------------------------------------------------


def test_paths_that_are_no_model_are_misuse(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    (tmp_path / "unknown").mkdir()
    (tmp_path / "unknown" / "config.json").write_text('{"model_type": "no_such_type"}')
    for path, words in (
        (tmp_path / "nothing", "no such file or folder"),
        (packed, "no config.json in it"),
        (tmp_path / "broken", "transformers cannot use its config"),
        (tmp_path / "unknown", "transformers cannot use its config"),
    ):
        code, _, error = verify(capsys, packed, "--model", path, "--quiet")
        assert code == 2
        assert words in error
        assert error.count("\n") == 1


def test_attention_without_a_model_is_misuse(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, error = verify(capsys, packed, "--attention", "sdpa")
    assert code == 2
    assert "give --model" in error


def test_an_attention_that_is_not_there_is_misuse_and_names_those_that_are(packed: Path, llama: Path) -> None:
    with pytest.raises(Misuse, match=r"no attention 'no_such' in transformers; it has eager, .*sdpa"):
        check_dataset(packed, llama, "no_such")


def test_an_empty_path_is_no_model(packed: Path) -> None:
    with pytest.raises(Misuse, match="--model is empty"):
        check_dataset(packed, "")


def test_nothing_but_the_verdict_is_said(packed: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    kinds = {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}
    path = config_only(tmp_path / "lfm2", transformers.Lfm2Config(**SIZES, **kinds))
    check_dataset(packed, path)
    assert capfd.readouterr() == ("", "")


def test_no_code_of_the_folder_runs(packed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "evil"
    folder.mkdir()
    ran = tmp_path / "ran"
    (folder / "modeling_evil.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    names = {"AutoConfig": "modeling_evil.Config", "AutoModelForCausalLM": "modeling_evil.Model"}
    for model_type in ("evil", "llama"):
        values = {**transformers.LlamaConfig(**SIZES).to_dict(), "model_type": model_type, "auto_map": names}
        (folder / "config.json").write_text(json.dumps(values))
        # transformers would take its own Llama in silence, of which a verdict says nothing of the folder's class.
        with pytest.raises(Misuse, match=r"code of its own \(auto_map: modeling_evil.Model\)"):
            check_dataset(packed, folder)
    assert not ran.exists()


def without(llama: Path, folder: Path, lost: Callable[[str], bool]) -> Path:
    """The model with some of its tensors missing."""
    shutil.copytree(llama, folder)
    file = folder / "model.safetensors"
    kept = {name: tensor for name, tensor in load_file(file).items() if not lost(name)}
    save_file(kept or {"foo": torch.zeros(3)}, file, metadata={"format": "pt"})
    return folder


def test_what_is_random_of_the_weights_is_said(
    packed: Path, llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_only(tmp_path / "config", transformers.LlamaConfig(**SIZES))
    code, shown, _ = verify(capsys, packed, "--model", config)
    assert code == 0
    assert "          weights      random, of a small model made from the config\n" in shown
    assert check_dataset(packed, llama).to_json()["weights"] == ""
    some = without(llama, tmp_path / "some", lambda name: name in ("lm_head.weight", "model.norm.weight"))
    assert check_dataset(packed, some).weights == "2 of 21 tensors are in no file and random"


def test_weights_of_which_a_layer_or_everything_is_missing_are_refused(
    packed: Path, llama: Path, tmp_path: Path
) -> None:
    layer = without(llama, tmp_path / "layer", lambda name: ".layers.1." in name)
    with pytest.raises(Misuse, match=r"lack all of model.layers.1 \(1 of 2 layers\)"):
        check_dataset(packed, layer)
    with pytest.raises(Misuse, match="hold nothing of a LlamaForCausalLM"):
        check_dataset(packed, without(llama, tmp_path / "all", lambda _: True))
    shards = tmp_path / "shards"
    shutil.copytree(llama, shards)
    (shards / "model.safetensors").rename(shards / "other.txt")
    index = {"metadata": {}, "weight_map": {"lm_head.weight": "model-00001-of-00002.safetensors"}}
    (shards / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(Misuse, match="cannot load it"):
        check_dataset(packed, shards)


def test_a_loss_that_fails_is_one_line_beside_the_verdict(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = transformers.GitConfig(
        vocab_size=4096, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
    )
    code, shown, error = verify(capsys, packed, "--model", config_only(tmp_path / "git", config), "--quiet")
    assert code == 1
    assert "FAIL  isolation" in shown
    assert not error


def test_pickled_weights_are_never_read(packed: Path, tmp_path: Path) -> None:
    path = config_only(tmp_path / "pickled", transformers.LlamaConfig(**SIZES))
    (path / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n(S'false'\ntR.")
    assert check_dataset(packed, path).weights.startswith("random")


@pytest.mark.parametrize("where", ["option", "config"])
def test_kernels_from_the_hub_are_refused(packed: Path, tmp_path: Path, where: str) -> None:
    path = config_only(tmp_path / "hub", transformers.LlamaConfig(**SIZES))
    kernel = "somebody/flash-attn"
    if where == "config":
        values = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps({**values, "attn_implementation": kernel}))
    with pytest.raises(Misuse, match="would be loaded from the hub"):
        check_dataset(packed, path, kernel if where == "option" else None)
