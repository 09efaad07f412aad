"""Isolation for a dataset and a local transformers model: takes two paths, gives what ``check_isolation`` finds.

Loads weights from safetensors alone, and runs no code from the model's folder. Where there is only a config, makes a
model of two layers with random weights, whose attention is the same.
"""

import contextlib
import copy
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import nn

from packtool.addresses import refuse_address
from packtool.contract import IGNORED, PADDING_DOC
from packtool.errors import BadData, Misuse, PacktoolError
from packtool.torch.collator import VarlenCollator
from packtool.torch.dataset import PackedDataset
from packtool.torch.isolation import IsolationReport, check_isolation
from packtool.torch.trial import first_line

SEGMENTS = 6
SEGMENT_TOKENS = 64
"""As much of a segment as is looked at: attention that keeps their beginnings apart keeps their ends apart."""
LONG_SEGMENT_TOKENS = 512
"""As much of the longest one, which stands beside the others, unless the model is large."""
_LARGE = 2**25
"""Parameters of a model that takes minutes for so many tokens."""
_PACKS = 64
"""So many packs are searched for segments."""
_LAYERS = 2
_VOCABULARY = 2048
"""Of a random model; more than the tokens that are looked at."""
_EXPERTS = 8
_MOST_BYTES = 2**31
"""Of the parameters of a random model; a larger one is made narrower."""


def check_dataset(
    folder: str | PathLike[str], model_path: str | PathLike[str], attention: str | None = None
) -> IsolationReport:
    """Find out whether the model at ``model_path`` keeps apart what is packed in ``folder``.

    Args:
        folder: a packed dataset; the beginnings of its first segments are used, and more of the longest among them,
            flattened as ``VarlenCollator`` does, with ``use_cache=False``.
        model_path: a transformers folder with weights in safetensors, or one with a config alone, or a config file.
        attention: transformers' name of an attention implementation (``eager``, ``sdpa``, ``flex_attention``,
            ``flash_attention_2``); by default what transformers chooses.

    Raises:
        BadData: there is no dataset, or it has fewer than two segments.
        Misuse: there is no model, or none that fits, or one that needs code of its own.
        PacktoolError: transformers is not installed, or the model does not run.
    """
    if not os.fspath(model_path):
        raise Misuse("--model is empty; give the path of a local transformers model")
    refuse_address("--model", model_path)
    path = Path(model_path)
    config = _read_config(path)
    dataset = PackedDataset(folder)
    _check_vocabulary(path, config, dataset)
    beginnings = _beginnings(dataset)
    if _has_weights(path):
        model, weights = _load(path, attention)
    else:
        model, weights = _random(path, config, attention)
    large = sum(each.numel() for each in model.parameters()) > _LARGE
    pack = _pack(beginnings, SEGMENT_TOKENS if large else LONG_SEGMENT_TOKENS)
    if not _has_weights(path):
        # With random weights any tokens do, so a small vocabulary does.
        _, pack["input_ids"] = torch.unique(pack["input_ids"], return_inverse=True)
        pack["labels"] = torch.where(pack["labels"] == IGNORED, IGNORED, pack["input_ids"])
    if torch.cuda.is_available():
        model = model.to("cuda")
    batch = {**VarlenCollator()([pack]), "use_cache": False}
    longest = dataset.manifest.longest_segment
    try:
        with _quiet(_transformers()):
            report = check_isolation(model, batch, longest=longest)
    except PacktoolError as error:
        positions = getattr(config, "max_position_embeddings", None)
        if isinstance(positions, int) and positions < longest:
            raise PacktoolError(
                f"{path}: it has {positions:,} positions, but the longest segment of {folder} has {longest:,} tokens: "
                f"{error}"
            ) from error
        raise
    return replace(report, weights=weights)


def _check_vocabulary(path: Path, config: Any, dataset: PackedDataset) -> None:
    size, needed = getattr(config, "vocab_size", None), dataset.manifest.tokenizer.vocabulary_size
    if isinstance(size, int) and size < needed:
        raise Misuse(
            f"{path}: its vocabulary has {size:,} entries, but that of {dataset.path} has {needed:,}: "
            "it was packed with another model's tokenizer, or the model's embeddings were not resized to it"
        )


# -- the packs ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Beginning:
    """What is looked at of one segment."""

    place: tuple[int, int]
    """The number of its pack, and its first token there."""
    ids: torch.Tensor
    labels: torch.Tensor

    def cut(self, most: int) -> "_Beginning":
        return replace(self, ids=self.ids[:most], labels=self.labels[:most])


def _beginnings(dataset: PackedDataset) -> list[_Beginning]:
    """Of a few segments, those that train something there if there are enough; the longest one first."""
    trained: list[_Beginning] = []
    others: list[_Beginning] = []
    longest: _Beginning | None = None
    for number in range(min(len(dataset), _PACKS)):
        pack = dataset[number]
        start = 0
        for length, doc_id in zip(pack["seq_lengths"].tolist(), pack["doc_ids"].tolist(), strict=True):
            part = slice(start, start + min(length, LONG_SEGMENT_TOKENS))
            found = _Beginning((number, start), pack["input_ids"][part], pack["labels"][part])
            start += length
            if doc_id == PADDING_DOC:
                continue
            if longest is None or len(found.ids) > len(longest.ids):
                longest = found
            if len(trained) < SEGMENTS:
                short = found.cut(SEGMENT_TOKENS)
                (trained if bool((short.labels != IGNORED).any()) else others).append(short)
    chosen = trained if len(trained) > 1 else (trained + others)[:SEGMENTS]
    if longest is None or len(chosen) < 2:
        raise BadData(f"{dataset.path}: it has one segment, into which nothing can leak")
    beside = [each for each in chosen if each.place != longest.place]
    return [longest, *beside[: SEGMENTS - 1]]


def _pack(beginnings: list[_Beginning], most: int) -> dict[str, torch.Tensor]:
    """Them as one pack, none longer than ``most``."""
    segments = [each.cut(most) for each in beginnings]
    return {
        "input_ids": torch.cat([each.ids for each in segments]),
        "labels": torch.cat([each.labels for each in segments]),
        "seq_lengths": torch.tensor([len(each.ids) for each in segments]),
    }


# -- the model ---------------------------------------------------------------------------------------------


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise PacktoolError(f"verify --model needs transformers (pip install transformers): {error}") from None
    return transformers


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Without bars, hints and warnings; what goes wrong is raised."""
    logging = transformers.logging
    level = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _read_config(path: Path) -> Any:
    transformers = _transformers()
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        what = "no config.json in it" if path.is_dir() else "no such file or folder"
        raise Misuse(f"{path}: not a local transformers model: {what}")
    _refuse_own_code(path, file)
    with _quiet(transformers):
        try:
            config = transformers.AutoConfig.from_pretrained(file, local_files_only=True, trust_remote_code=False)
            config = config.get_text_config(decoder=True)
        except Exception as error:
            raise Misuse(f"{path}: transformers cannot use its config: {first_line(error)}") from error
    _refuse_hub_kernel(path, getattr(config, "_attn_implementation", None))
    return config


def _refuse_own_code(path: Path, file: Path) -> None:
    """A config may name classes in the folder's own Python files, beside which transformers' class proves nothing."""
    try:
        values = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        return  # transformers says what is wrong with it
    parts = [values, *values.values()] if isinstance(values, dict) else []
    for part in parts:
        own = part.get("auto_map") if isinstance(part, dict) else None
        if own:
            code = own.get("AutoModelForCausalLM") if isinstance(own, dict) else None
            raise Misuse(
                f"{path}: its config names code of its own (auto_map: {code or own}), which packtool never runs: load "
                "the model yourself and call packtool.torch.check_isolation; or, to try the class that transformers "
                "itself has for it, take auto_map out of a copy of the config"
            )


def _has_weights(path: Path) -> bool:
    # The index of a sharded model counts: without its shards it is an error, not a model of random weights.
    return path.is_dir() and any(path.glob("*.safetensors*"))


def _load(path: Path, attention: str | None) -> tuple[nn.Module, str]:
    """The model, and what of its weights is random."""
    transformers = _transformers()
    with _quiet(transformers):
        try:
            model, info = transformers.AutoModelForCausalLM.from_pretrained(
                path,
                dtype=torch.float32,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
                **_attention_option(path, attention),
            )
        except PacktoolError:
            raise
        except Exception as error:
            raise Misuse(f"{path}: transformers cannot load it: {first_line(error)}") from error
    return model, _missing(path, model, info)


def _missing(path: Path, model: nn.Module, info: Mapping[str, Any]) -> str:
    """Which parameters are in no file, in words; refused where a whole layer is missing, or everything."""
    names = [name for name, _ in model.named_parameters()]
    missing = [name for name in names if name in set(info["missing_keys"])]
    if len(missing) == len(names):
        raise Misuse(f"{path}: its safetensors hold nothing of a {type(model).__name__}")
    layers: dict[str, list[bool]] = {}
    for name in names:
        if layer := re.match(r".*?\.\d+(?=\.)", name):
            layers.setdefault(layer[0], []).append(name in missing)
    if gone := [layer for layer, lost in layers.items() if all(lost)]:
        raise Misuse(f"{path}: its safetensors lack all of {gone[0]} ({len(gone)} of {len(layers)} layers)")
    return f"{len(missing)} of {len(names)} tensors are in no file and random" if missing else ""


def _random(path: Path, config: Any, attention: str | None) -> tuple[nn.Module, str]:
    """A small model of the same kind."""
    transformers = _transformers()
    problem: Exception | None = None
    option = _attention_option(path, attention)

    def make(small: Any) -> nn.Module:
        made: nn.Module = transformers.AutoModelForCausalLM.from_config(
            small, dtype=torch.float32, trust_remote_code=False, **option
        )
        return made

    with _quiet(transformers), torch.random.fork_rng():
        torch.manual_seed(0)
        for small in _candidates(config):
            try:
                return make(_narrow(path, small, make)), "random, of a small model made from the config"
            except PacktoolError:
                raise
            except Exception as error:
                problem = problem or error
    assert problem is not None
    raise Misuse(f"{path}: transformers cannot make a small model from this config: {first_line(problem)}") from problem


def _attention_option(path: Path, attention: str | None) -> dict[str, str]:
    _refuse_hub_kernel(path, attention)
    if attention is None:
        return {}
    known = ["eager", *(name for name in _transformers().AttentionInterface().valid_keys() if "|" not in name)]
    if attention not in known:
        raise Misuse(f"{path}: no attention {attention!r} in transformers; it has {', '.join(dict.fromkeys(known))}")
    return {"attn_implementation": attention}


def _refuse_hub_kernel(path: Path, attention: Any) -> None:
    # A name with a slash is a kernel on the hub: code from elsewhere. A config can name one, too.
    if attention is not None and "/" in str(attention):
        raise Misuse(f"{path}: attention {attention!r} would be loaded from the hub, which packtool never does")


def _candidates(config: Any) -> Iterator[Any]:
    """Ever less small configs of the same architecture, for not every one bears every cut."""
    for layers in (True, False):
        for token_id in (None, 1):
            try:
                small = _small(config, fewer_layers=layers, token_id=token_id)
            except Exception:  # whatever a config raises at a value that it does not take
                continue
            yield small
    yield config


def _small(config: Any, *, fewer_layers: bool = True, token_id: int | None = None) -> Any:
    """The same architecture with two layers, or one of each kind, a small vocabulary and few experts."""
    small = copy.deepcopy(config)
    if fewer_layers:
        _cut_layers(small)
    for name in ("vocab_size", "vocab_size_per_layer_input"):
        if isinstance(getattr(small, name, None), int):
            setattr(small, name, _VOCABULARY)
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        setattr(small, name, token_id)
    for name in ("num_experts", "num_local_experts", "n_routed_experts"):
        if isinstance(experts := getattr(small, name, None), int) and experts > _EXPERTS:
            setattr(small, name, _EXPERTS)
            small.num_experts_per_tok = min(int(getattr(small, "num_experts_per_tok", None) or 2), 2)
            for group in ("n_group", "topk_group"):
                if getattr(small, group, None) is not None:
                    setattr(small, group, 1)
    return small


def _cut_layers(small: Any) -> None:
    count = int(small.num_hidden_layers)
    kinds = getattr(small, "layer_types", None) or []
    chosen = [number for number, kind in enumerate(kinds[:count]) if kind not in kinds[:number]]
    chosen = sorted({*chosen, *range(min(_LAYERS, count))})
    for name, value in list(vars(small).items()):
        if isinstance(value, list) and len(value) == count and count > 1:
            setattr(small, name, [value[number] for number in chosen])
    small.num_hidden_layers = len(chosen)
    if getattr(small, "num_kv_shared_layers", None):
        small.num_kv_shared_layers = 0  # they share those of layers that are cut


def _narrow(path: Path, config: Any, make: Callable[[Any], nn.Module]) -> Any:
    """The config with its widths halved until the model fits; made on no device to see how large it is."""

    def size(of: Any) -> int:
        with torch.device("meta"):
            return 4 * sum(each.numel() for each in make(of).parameters())

    full = size(config)
    # Inner widths first: they have nothing to do with attention. Heads keep their width.
    for inner in (True, False):
        while size(config) > _MOST_BYTES and (narrower := _halved(config, inner)) is not None:
            try:
                size(narrower)
            except Exception:
                break
            config = narrower
    if size(config) > _MOST_BYTES:
        raise Misuse(
            f"{path}: a small model made from this config takes {full / 2**30:.1f} GiB, more than is made here"
        )
    return config


def _halved(config: Any, inner: bool) -> Any | None:
    """With the widths inside feed-forward layers halved, or with half the heads; None where they cannot be."""
    narrower = copy.deepcopy(config)
    if inner:
        names = [name for name in vars(config) if re.search("intermediate_size|ffn", name)]
    else:
        names = ["hidden_size", "num_attention_heads", "num_key_value_heads"]
    changed = False
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value > 1:
            if value % 2 or (name == "hidden_size" and value < 512) or (inner and value < 512):
                continue
            setattr(narrower, name, value // 2)
            changed = True
    if not inner and getattr(narrower, "hidden_size", None) == getattr(config, "hidden_size", None):
        return None
    return narrower if changed else None
