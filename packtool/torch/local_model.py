"""Isolation for a dataset and a local transformers model: takes two paths, gives what ``check_isolation`` finds.

Loads weights from safetensors alone, and runs no code from the model's folder. Where there is only a config, makes a
model of two layers with random weights, whose attention is the same.
"""

import contextlib
import copy
import warnings
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import nn

from packtool.contract import IGNORED, PADDING_DOC
from packtool.errors import BadData, Misuse, PacktoolError
from packtool.torch.collator import VarlenCollator
from packtool.torch.dataset import PackedDataset
from packtool.torch.isolation import IsolationReport, check_isolation
from packtool.torch.trial import first_line

SEGMENTS = 6
SEGMENT_TOKENS = 64
"""As much of each segment as is looked at: attention that keeps their beginnings apart keeps their ends apart."""
_PACKS = 64
"""So many packs are searched for segments."""
_LAYERS = 2
_VOCABULARY = 2048
"""Of a random model; more than the tokens that are looked at."""
_EXPERTS = 8


def check_dataset(
    folder: str | PathLike[str], model_path: str | PathLike[str], attention: str | None = None
) -> IsolationReport:
    """Find out whether the model at ``model_path`` keeps apart what is packed in ``folder``.

    Args:
        folder: a packed dataset; the beginnings of its first segments are used, flattened as ``VarlenCollator`` does,
            with ``use_cache=False``.
        model_path: a transformers folder with weights in safetensors, or one with a config alone, or a config file.
        attention: transformers' name of an attention implementation (``eager``, ``sdpa``, ``flex_attention``,
            ``flash_attention_2``); by default what transformers chooses.

    Raises:
        BadData: there is no dataset, or it has fewer than two segments.
        Misuse: there is no model, or none that fits.
        PacktoolError: transformers is not installed, or the model does not run.
    """
    path = Path(model_path)
    config = _read_config(path)
    pack = _sample(folder)
    size = getattr(config, "vocab_size", None)
    if isinstance(size, int) and int(pack["input_ids"].max()) >= size:
        raise Misuse(
            f"{path}: its vocabulary has {size:,} entries, but {folder} holds id {int(pack['input_ids'].max()):,}: "
            "it was packed with another model's tokenizer"
        )
    if _has_weights(path):
        model = _load(path, attention)
    else:
        model = _random(path, config, attention)
        # With random weights any tokens do, so a small vocabulary does.
        _, pack["input_ids"] = torch.unique(pack["input_ids"], return_inverse=True)
        pack["labels"] = torch.where(pack["labels"] == IGNORED, IGNORED, pack["input_ids"])
    if torch.cuda.is_available():
        model = model.to("cuda")
    return check_isolation(model, {**VarlenCollator()([pack]), "use_cache": False})


# -- the packs ---------------------------------------------------------------------------------------------


def _sample(folder: str | PathLike[str]) -> dict[str, torch.Tensor]:
    """The beginnings of a few segments as one pack; of those that train something there, if there are enough."""
    trained: list[tuple[torch.Tensor, torch.Tensor]] = []
    others: list[tuple[torch.Tensor, torch.Tensor]] = []
    dataset = PackedDataset(folder)
    for number in range(min(len(dataset), _PACKS)):
        pack = dataset[number]
        start = 0
        for length, doc_id in zip(pack["seq_lengths"].tolist(), pack["doc_ids"].tolist(), strict=True):
            part = slice(start, start + min(length, SEGMENT_TOKENS))
            start += length
            if doc_id == PADDING_DOC or len(trained) == SEGMENTS:
                continue
            found = pack["input_ids"][part], pack["labels"][part]
            (trained if bool((found[1] != IGNORED).any()) else others).append(found)
    segments = trained if len(trained) > 1 else (trained + others)[:SEGMENTS]
    if len(segments) < 2:
        raise BadData(f"{folder}: it has one segment, into which nothing can leak")
    lengths = torch.tensor([len(ids) for ids, _ in segments])
    return {
        "input_ids": torch.cat([ids for ids, _ in segments]),
        "labels": torch.cat([labels for _, labels in segments]),
        "seq_lengths": lengths,
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
    with _quiet(transformers):
        try:
            config = transformers.AutoConfig.from_pretrained(file, local_files_only=True, trust_remote_code=False)
            config = config.get_text_config(decoder=True)
        except Exception as error:
            raise Misuse(f"{path}: transformers cannot use its config: {first_line(error)}") from error
    _refuse_hub_kernel(path, getattr(config, "_attn_implementation", None))
    return config


def _has_weights(path: Path) -> bool:
    return path.is_dir() and any(path.glob("*.safetensors"))


def _load(path: Path, attention: str | None) -> nn.Module:
    transformers = _transformers()
    with _quiet(transformers):
        try:
            model: nn.Module = transformers.AutoModelForCausalLM.from_pretrained(
                path,
                dtype=torch.float32,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                **_attention_option(path, attention),
            )
        except PacktoolError:
            raise
        except Exception as error:
            raise Misuse(f"{path}: transformers cannot load it: {first_line(error)}") from error
    return model


def _random(path: Path, config: Any, attention: str | None) -> nn.Module:
    transformers = _transformers()
    with _quiet(transformers), torch.random.fork_rng():
        torch.manual_seed(0)
        try:
            model: nn.Module = transformers.AutoModelForCausalLM.from_config(
                _small(config), dtype=torch.float32, trust_remote_code=False, **_attention_option(path, attention)
            )
        except PacktoolError:
            raise
        except Exception as error:
            raise Misuse(
                f"{path}: transformers cannot make a small model from this config: {first_line(error)}"
            ) from error
    return model


def _attention_option(path: Path, attention: str | None) -> dict[str, str]:
    _refuse_hub_kernel(path, attention)
    return {} if attention is None else {"attn_implementation": attention}


def _refuse_hub_kernel(path: Path, attention: Any) -> None:
    # A name with a slash is a kernel on the hub: code from elsewhere. A config can name one, too.
    if attention is not None and "/" in str(attention):
        raise Misuse(f"{path}: attention {attention!r} would be loaded from the hub, which packtool never does")


def _small(config: Any) -> Any:
    """The same architecture with two layers, or one of each kind, a small vocabulary and few experts."""
    small = copy.deepcopy(config)
    count = int(small.num_hidden_layers)
    kinds = getattr(small, "layer_types", None) or []
    chosen = [number for number, kind in enumerate(kinds[:count]) if kind not in kinds[:number]]
    chosen = sorted({*chosen, *range(min(_LAYERS, count))})
    for name, value in list(vars(small).items()):
        if isinstance(value, list) and len(value) == count and count > 1:
            setattr(small, name, [value[number] for number in chosen])
    small.num_hidden_layers = len(chosen)
    small.vocab_size = _VOCABULARY
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        setattr(small, name, None)
    for name in ("num_experts", "num_local_experts", "n_routed_experts"):
        if isinstance(experts := getattr(small, name, None), int) and experts > _EXPERTS:
            setattr(small, name, _EXPERTS)
            small.num_experts_per_tok = min(int(getattr(small, "num_experts_per_tok", 2)), 2)
            for group in ("n_group", "topk_group"):
                if getattr(small, group, None) is not None:
                    setattr(small, group, 1)
    return small
