"""Conversations: packtool's rendering and labels against transformers' ``apply_chat_template``, templates from `trl`.

Rendering is timed alone, from records in memory; then from JSONL: packtool's whole run, with one worker, against no
more than reading, rendering, encoding and labels, in one thread; then all the way, with as many processes each: the
peer's tokens and labels come from a `datasets` map, TRL packs them, and `datasets` writes them. The peer's labels need
the template's marked twin; packtool takes the unmarked one and finds what trains by itself, within its time.
"""

import json
import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from tests.bench.end_to_end import trl_result
from tests.bench.measuring import Stopwatch, Timing, run_function, take_turns
from tests.bench.report import Goal, Line
from tests.bench.setting import MAX_LENGTH, SAMPLE_TOKENIZER, Setting

_TEMPLATES = ("llama3", "qwen3")
_PACKED_TEMPLATE = "llama3"
"""Its marked twin prints the same text."""
_SPECIAL = (
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|pad|>",
)
"""What the templates print beside what is said: as in the models' own vocabularies, each is one token."""
_BATCH = 1_000


def measure_conversations(setting: Setting) -> list[Line]:
    """Rendered, with two templates; then down to tokens and labels, with two vocabularies."""
    source = str(setting.corpus.conversations)
    vocabularies = {
        name: str(_with_special_tokens(folder, setting.work / f"chat-{name}"))
        for name, folder in (("2k", SAMPLE_TOKENIZER), ("128k", setting.tokenizer))
    }
    lines: list[Line] = []
    for template in _TEMPLATES:
        arguments = {"source": source, "tokenizer": vocabularies["2k"], "template": str(_trl_template(template))}
        timings = take_turns(
            {
                "packtool, text and spans": lambda given=arguments: run_function(render_with_packtool, **given),
                "transformers, text": lambda given=arguments: run_function(render_with_transformers, **given),
            },
            setting.rounds,
        )
        ours, theirs = timings.values()
        if ours.facts["characters"] != theirs.facts["characters"]:
            raise RuntimeError(f"{template}: the texts differ: {ours.facts}, {theirs.facts}")
        lines += _lines(f"rendered, {template}", timings, Goal(1))
    for name, tokenizer in vocabularies.items():
        arguments = {"source": source, "tokenizer": tokenizer}
        timings = take_turns(
            {
                "packtool, packed": lambda given=arguments: run_function(
                    pack_with_packtool,
                    **given,
                    template=str(_trl_template(_PACKED_TEMPLATE)),
                    output=str(setting.fresh("packed-chat")),
                ),
                "transformers, tokens and mask": lambda given=arguments: run_function(
                    tokenize_with_transformers,
                    **given,
                    template=str(_trl_template(f"{_PACKED_TEMPLATE}_training")),
                ),
            },
            setting.rounds,
        )
        lines += _lines(f"tokens, labels, {name} vocabulary", timings, None)
    lines += _lines("conversations, 128k vocabulary", _end_to_end(setting, source, vocabularies["128k"]), Goal(4))
    for folder in ("packed-chat", "peer"):
        setting.fresh(folder)
    return lines


def _end_to_end(setting: Setting, source: str, tokenizer: str) -> Mapping[str, Timing]:
    """From JSONL to packed Parquet, with as many processes each."""
    arguments = {"source": source, "tokenizer": tokenizer}
    return take_turns(
        {
            "packtool": lambda: run_function(
                pack_with_packtool,
                **arguments,
                template=str(_trl_template(_PACKED_TEMPLATE)),
                output=str(setting.fresh("packed-chat")),
                workers=setting.workers,
            ),
            f"transformers + TRL, num_proc {setting.workers}": lambda: run_function(
                pack_with_transformers,
                **arguments,
                template=str(_trl_template(f"{_PACKED_TEMPLATE}_training")),
                folder=str(setting.fresh("peer")),
                processes=setting.workers,
            ),
        },
        setting.rounds,
    )


def _lines(what: str, timings: Mapping[str, Timing], goal: Goal | None) -> Iterator[Line]:
    ours, theirs = timings.values()
    for name, timing in timings.items():
        rate = f"{timing.facts['conversations'] / timing.seconds:,.0f}/s"
        if timing is ours:
            ratio = theirs.seconds / ours.seconds
            yield Line(what, name, timing, rate, timing.facts.get("fill"), ratio, "faster", goal)
        else:
            yield Line(what, name, timing, rate)


def _trl_template(name: str) -> Path:
    spec = find_spec("trl")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("the benchmark needs trl: pip install -e '.[dev]'")
    return Path(spec.submodule_search_locations[0]) / "chat_templates" / f"{name}.jinja"


def _with_special_tokens(tokenizer: Path, folder: Path) -> Path:
    """The same vocabulary with the templates' tokens, its offsets not trimmed, which the peer's mask needs."""
    from tokenizers import Tokenizer

    made = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    made.add_special_tokens(list(_SPECIAL))
    folder.mkdir(exist_ok=True)
    text = made.to_str().replace('"trim_offsets":true', '"trim_offsets":false')
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    named = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>", "pad_token": "<|pad|>"}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **named}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


# --- the contestants -----------------------------------------------------------------------------------------


def render_with_packtool(source: str, tokenizer: str, template: str) -> dict[str, Any]:
    """What a worker does with each record before encoding: a text, and what of it trains."""
    from packtool.errors import Refusal
    from packtool.rendering import conversation
    from packtool.rendering.chat import ChatRenderer, ChatSettings
    from packtool.tokenizer import chat_templates, find_tokenizer, load, special_token_texts

    records = list(_records(source))
    files = find_tokenizer(tokenizer)
    templates, origin = chat_templates(files, template)
    named, special = special_token_texts(files, load(files))
    settings = ChatSettings(templates, origin, "2026-01-01", json.dumps(dict(named)), tuple(special))
    characters = trained = 0
    with Stopwatch() as watch:
        render = ChatRenderer(settings, lambda record: conversation.openai(record, False))
        for record in records:
            rendered = render(record)
            if isinstance(rendered, Refusal):
                raise RuntimeError(f"left out: {rendered}")
            characters += len(rendered.text)
            trained += sum(stop - start for start, stop in rendered.spans or ())
    return {**watch.taken, "conversations": len(records), "characters": characters, "trained": trained}


def render_with_transformers(source: str, tokenizer: str, template: str) -> dict[str, Any]:
    """``apply_chat_template`` without encoding, a batch of conversations a call; what trains it does not say."""
    from transformers import PreTrainedTokenizerFast

    conversations = [record["messages"] for record in _records(source)]
    renderer = PreTrainedTokenizerFast.from_pretrained(tokenizer)
    chat_template = Path(template).read_text(encoding="utf-8")
    characters = 0
    with Stopwatch() as watch:
        for batch in _batches(iter(conversations)):
            texts = renderer.apply_chat_template(batch, chat_template=chat_template, tokenize=False)
            characters += sum(map(len, texts))
    return {**watch.taken, "conversations": len(conversations), "characters": characters}


def pack_with_packtool(source: str, tokenizer: str, template: str, output: str, workers: int = 1) -> dict[str, Any]:
    """From JSONL to a packed dataset, checked and synced."""
    from packtool import PackConfig, stats
    from packtool.run import pack

    config = PackConfig.checked(
        {
            "sources": [source],
            "output": Path(output),
            "tokenizer": tokenizer,
            "chat_template": template,
            "max_length": MAX_LENGTH,
            "overlong": "truncate",
            "workers": workers,
        }
    )
    with Stopwatch() as watch:
        pack(config)
    found = stats(output)
    conversations = sum(1 for _ in _records(source))
    return {
        **watch.taken,
        "conversations": conversations,
        "tokens": found.tokens,
        "trained": found.trained_tokens,
        "fill": found.fill,
    }


def tokenize_with_transformers(source: str, tokenizer: str, template: str) -> dict[str, Any]:
    """From JSONL to lists of ids and labels in memory, a batch of conversations a call."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from transformers import PreTrainedTokenizerFast

    chat_template = Path(template).read_text(encoding="utf-8")
    conversations = tokens = trained = 0
    with Stopwatch() as watch:
        encoder = PreTrainedTokenizerFast.from_pretrained(tokenizer)
        for batch in _batches(_records(source)):
            labels = _encoded(encoder, chat_template, [record["messages"] for record in batch])["labels"]
            conversations += len(batch)
            tokens += sum(map(len, labels))
            trained += sum(1 for row in labels for label in row if label != -100)
    return {**watch.taken, "conversations": conversations, "tokens": tokens, "trained": trained}


def pack_with_transformers(source: str, tokenizer: str, template: str, folder: str, processes: int) -> dict[str, Any]:
    """From JSONL to packed Parquet: a map to ids and labels, TRL's packing, and `datasets` writes."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from datasets import disable_progress_bars, load_dataset
    from transformers import PreTrainedTokenizerFast
    from trl import pack_dataset

    disable_progress_bars()
    in_processes = None if processes == 1 else processes
    chat_template = Path(template).read_text(encoding="utf-8")

    def tokenize(batch: dict[str, list[Any]]) -> dict[str, list[list[int]]]:
        return _encoded(encoder, chat_template, batch["messages"])

    with Stopwatch() as watch:
        encoder = PreTrainedTokenizerFast.from_pretrained(tokenizer)
        rows = load_dataset("json", data_files=source, split="train", cache_dir=f"{folder}/cache")
        tokenized = rows.map(tokenize, batched=True, remove_columns=rows.column_names, num_proc=in_processes)
        packed = pack_dataset(tokenized, MAX_LENGTH, "bfd", map_kwargs={"num_proc": in_processes})
        packed.to_parquet(f"{folder}/packed.parquet")
    return {**watch.taken, "conversations": len(rows), **trl_result(packed)}


def _encoded(encoder: Any, chat_template: str, conversations: list[Any]) -> dict[str, list[list[int]]]:
    encoded = encoder.apply_chat_template(
        conversations,
        chat_template=chat_template,
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    pairs = zip(encoded["input_ids"], encoded["assistant_masks"], strict=True)
    labels = [[id if trains else -100 for id, trains in zip(*pair, strict=True)] for pair in pairs]
    return {"input_ids": encoded["input_ids"], "labels": labels}


def _records(source: str) -> Iterator[dict[str, Any]]:
    import orjson

    with Path(source).open("rb") as file:
        yield from map(orjson.loads, file)


def _batches(items: Iterator[Any]) -> Iterator[list[Any]]:
    while batch := list(islice(items, _BATCH)):
        yield batch
