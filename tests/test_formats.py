"""Which format records have: a table of records and outcomes, and what is refused by name."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packtool.config import FormatName
from packtool.errors import Misuse
from packtool.formats import SHAPES, RecordShape, SourceHead, columns_read, find_shape, renderer, token_fields
from packtool.rendering import Rendered
from packtool.tokenized import TRAIN_FIELDS

Records = Sequence[Mapping[str, Any]]
AUTO = FormatName.AUTO
CHAT = [{"role": "user", "content": "x"}]
SHAREGPT = [{"from": "human", "value": "x"}, {"from": "gpt", "value": "y"}]


def shape_of(
    *sources: Records, format: FormatName = AUTO, fields: Mapping[str, str] | None = None, template: Path | None = None
) -> RecordShape:
    heads = [SourceHead(f"s{index}.jsonl", records) for index, records in enumerate(sources)]
    shape = find_shape(heads, format, fields or {}, template)
    assert shape is not None
    return shape


def refusal(
    *sources: Records, format: FormatName = AUTO, fields: Mapping[str, str] | None = None, template: Path | None = None
) -> str:
    with pytest.raises(Misuse) as caught:
        shape_of(*sources, format=format, fields=fields, template=template)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("record", "name", "format"),
    [
        ({"text": "x"}, "text", FormatName.TEXT),
        ({"text": "x", "id": 3, "meta": {"a": None}}, "text", FormatName.TEXT),
        ({"text": 5}, "text", FormatName.TEXT),  # of the wrong type, which is a bad record and no other format
        ({"text": None}, "text", FormatName.TEXT),
        ({"prompt": "p", "completion": "c"}, "prompt_completion", FormatName.PROMPT_COMPLETION),
        ({"prompt": "p", "completion": None}, "prompt_completion", FormatName.PROMPT_COMPLETION),
        ({"prompt": [], "completion": "c"}, "prompt_completion", FormatName.PROMPT_COMPLETION),
        ({"prompt": ["a"], "completion": "c"}, "prompt_completion", FormatName.PROMPT_COMPLETION),
        ({"instruction": "i", "output": "o"}, "alpaca", FormatName.PROMPT_COMPLETION),
        ({"instruction": "i", "input": "", "output": "o"}, "alpaca", FormatName.PROMPT_COMPLETION),
        (
            {"instruction": "i", "output": "o", "system": "s", "history": [["a", "b"]]},
            "alpaca",
            FormatName.PROMPT_COMPLETION,
        ),
        ({"input_ids": [1, 2]}, "tokens", FormatName.TOKENS),
        ({"input_ids": np.array([1, 2]), "labels": np.array([1, 2])}, "tokens", FormatName.TOKENS),
        ({"input_ids": [1, 2], "attention_mask": [1, 1], "position_ids": [0, 1]}, "tokens", FormatName.TOKENS),
        ({"input_ids": None}, "tokens", FormatName.TOKENS),
        ({"messages": CHAT}, "openai", FormatName.MESSAGES),
        ({"messages": json.dumps(CHAT)}, "openai", FormatName.MESSAGES),
        ({"messages": CHAT, "tools": [], "chat_template_kwargs": {}}, "openai", FormatName.MESSAGES),
        ({"messages": []}, "openai", FormatName.MESSAGES),  # an empty conversation is left out, and no other format
        ({"conversations": [{"from": "human", "value": "x"}]}, "sharegpt", FormatName.MESSAGES),
        ({"conversations": SHAREGPT, "system": "s", "tools": "[]"}, "sharegpt", FormatName.MESSAGES),
        ({"prompt": CHAT, "completion": CHAT}, "message_lists", FormatName.MESSAGES),
        ({"prompt": [], "completion": CHAT}, "message_lists", FormatName.MESSAGES),
        ({"prompt": "p", "completion": CHAT}, "message_lists", FormatName.MESSAGES),  # a bad record
        ({"prompt": CHAT, "completion": "c"}, "message_lists", FormatName.MESSAGES),
    ],
)
def test_records_are_recognised(record: Mapping[str, Any], name: str, format: FormatName) -> None:
    shape = shape_of([record])
    assert (shape.name, shape.format) == (name, format)
    assert shape_of([record], format=format) == shape


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"prompt": "p", "chosen": "a", "rejected": "b"}, "preference pairs (chosen, rejected)"),
        ({"chosen": CHAT, "rejected": CHAT}, "preference pairs"),
        ({"text": "x", "image": {"bytes": b"", "path": None}}, "images (image)"),
        ({"text": "x", "picture": {"bytes": None, "path": "a.png"}}, "images (picture)"),
        ({"text": "x", "images": ["a.png"]}, "images (images)"),
        ({"text": "x", "image": "a.png"}, "images (image)"),
        ({"text": "x", "pixel_values": np.zeros(3)}, "images (pixel_values)"),
        ({"input_ids": [1, 2], "seq_lengths": [1, 1]}, "is packed already (it has seq_lengths)"),
        ({"input_ids": [1, 2, 3], "position_ids": [0, 1, 0]}, "is packed already (its position_ids start anew"),
        ({"input_ids": [1, 2], "position_ids": np.array([0, 0])}, "is packed already (its position_ids"),
        ({"text": "x", "messages": CHAT}, "more than one format: text (text) and messages (messages)"),
        ({"text": "x", "input_ids": [1]}, "text (text) and tokens (input_ids)"),
        ({"text": "x", "instruction": "i", "output": "o"}, "text (text) and prompt_completion (instruction, output)"),
        ({"body": "x"}, "no format fits its columns (body)"),
        ({}, "no format fits its columns (none)"),
        ({f"c{i}": 1 for i in range(20)}, "c7, ...)"),
        ({"a\nb\x1b[0m": 1}, "a\\nb\\x1b[0m"),
    ],
)
def test_what_cannot_be_packed_is_refused_by_name(record: Mapping[str, Any], words: str) -> None:
    message = refusal([record])
    assert message.startswith("s0.jsonl: ")
    assert words in message


@pytest.mark.parametrize(
    "record",
    [{"text": "x", "image": None}, {"text": "x", "image": ""}, {"text": "x", "images": []}, {"text": "x", "image": 3}],
)
def test_a_column_for_images_that_holds_none_is_no_hindrance(record: Mapping[str, Any]) -> None:
    assert shape_of([record]).name == "text"


@pytest.mark.parametrize(
    ("record", "format", "fields"),
    [
        ({"text": "x", "messages": CHAT}, FormatName.TEXT, {}),
        ({"text": "x", "input_ids": [1]}, FormatName.TOKENS, {}),
        ({"text": "x", "image": "a.png"}, FormatName.TEXT, {}),
        ({"prompt": "p", "chosen": "a", "rejected": "b"}, FormatName.PROMPT_COMPLETION, {"completion": "chosen"}),
        ({"text": "x", "messages": CHAT}, AUTO, {"text": "text"}),
        ({"text": "x", "prompt": "p", "completion": "c"}, AUTO, {"prompt": "prompt"}),
    ],
)
def test_an_explicit_choice_wins(record: Mapping[str, Any], format: FormatName, fields: Mapping[str, str]) -> None:
    shape = shape_of([record], format=format, fields=fields)
    if format is not AUTO:
        assert shape.format is format
    assert all(shape.column(field) == column for field, column in fields.items())


def test_alpaca_becomes_a_conversation_only_where_that_is_asked_for() -> None:
    record = {"instruction": "i", "output": "o", "system": "s", "history": [["a", "b"]]}
    assert shape_of([record]).name == "alpaca"
    assert shape_of([record], format=FormatName.MESSAGES).name == "alpaca_chat"
    assert {"input", "system", "history", "tools"} <= columns_read(shape_of([record], format=FormatName.MESSAGES))


def test_the_format_messages_takes_every_form_of_conversation() -> None:
    for record in ({"messages": CHAT}, {"conversations": SHAREGPT}, {"prompt": CHAT, "completion": CHAT}):
        assert shape_of([record], format=FormatName.MESSAGES) == shape_of([record])
    assert "needed: conversations, or instruction + output" in refusal([{"text": "x"}], format=FormatName.MESSAGES)


def test_an_explicit_format_still_refuses_what_is_packed_already() -> None:
    record = {"input_ids": [1, 2, 3], "position_ids": [0, 1, 0]}
    assert "is packed already" in refusal([record], format=FormatName.TOKENS)


@pytest.mark.parametrize(
    "record",
    [
        {"input_ids": [9, 9, 1, 2], "attention_mask": [0, 0, 1, 1], "position_ids": [1, 1, 0, 1]},
        {"input_ids": [1, 2, 9, 9], "attention_mask": [1, 1, 0, 0], "position_ids": [0, 1, 0, 0]},
        {"input_ids": [1, 2], "position_ids": [5, 6]},
        {"input_ids": [1, 2], "position_ids": None},
    ],
)
def test_positions_of_padding_are_no_sign_of_packing(record: Mapping[str, Any]) -> None:
    assert shape_of([record]).name == "tokens"


def test_one_record_of_the_head_is_enough_for_a_format() -> None:
    assert shape_of([{"other": 1}, {"text": "x"}]).name == "text"
    assert "more than one format" in refusal([{"text": "x"}] * 99 + [{"prompt": "p", "completion": "c"}])


def test_nulls_decide_only_where_nothing_else_does() -> None:
    assert shape_of([{"text": None, "prompt": "p", "completion": "c"}]).name == "prompt_completion"


def test_a_source_without_good_records_has_no_say() -> None:
    assert find_shape([], AUTO, {}, None) is None
    assert find_shape([SourceHead("a", [])], AUTO, {}, None) is None
    assert shape_of([], [{"text": "x"}]).name == "text"


def test_sources_of_different_formats_are_refused_naming_both() -> None:
    message = refusal([{"text": "x"}], [{"prompt": "p", "completion": "c"}])
    assert "s1.jsonl: its records are prompt_completion (prompt, completion)" in message
    assert "those of s0.jsonl are text (text)" in message
    message = refusal([{"text": "x"}], [{"body": "x"}])
    assert message.startswith("s1.jsonl: no format fits its columns (body)")
    assert "s0.jsonl are text (text)" in message
    message = refusal([{"input_ids": [1], "labels": [1]}], [{"input_ids": [1], "loss_mask": [1]}])
    assert "tokens (input_ids, loss_mask)" in message
    assert "tokens (input_ids, labels)" in message
    assert "s0.jsonl" in refusal([{"input_ids": [1], "labels": [1]}], [{"input_ids": [1]}])
    assert "s0.jsonl" in refusal([{"prompt": "p", "completion": "c"}], [{"instruction": "i", "output": "o"}])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"instruction": "i", "output": "o"}, {"instruction": "i", "input": "x", "output": "o"}),
        ({"input_ids": [1]}, {"input_ids": [1], "attention_mask": [1]}),
        ({"input_ids": [1], "position_ids": [0]}, {"input_ids": [1]}),
        ({"text": "x", "a": 1}, {"text": "x", "b": 1}),
    ],
)
def test_what_a_record_may_have_makes_no_other_format(one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    assert shape_of([one]) == shape_of([other]) == shape_of([one], [other]) == shape_of([other], [one])


@pytest.mark.parametrize(
    ("name", "format", "near"),
    [
        ("txt", AUTO, "'text'"),
        ("completions", AUTO, "'completion'"),
        ("instructions", FormatName.PROMPT_COMPLETION, "'instruction'"),
        ("label", FormatName.TOKENS, "'labels'"),
    ],
)
def test_an_unknown_field_name_suggests_the_nearest(name: str, format: FormatName, near: str) -> None:
    message = refusal([{"text": "x"}], format=format, fields={name: "text"})
    assert message == f"--field: unknown name {name!r}; did you mean {near}?"


def test_a_field_of_another_format_is_unknown() -> None:
    assert "known are text" in refusal([{"text": "x"}], format=FormatName.TEXT, fields={"labels": "x"})
    message = refusal([{"text": "x"}], fields={"text": "a", "prompt": "b"})
    assert message == "--field: no one format has all of prompt, text"


@pytest.mark.parametrize(
    ("record", "fields", "words"),
    [
        ({"body": "x"}, {"text": "bdy"}, "has no column 'bdy' for --field text; did you mean 'body'? It has body"),
        (
            {"q": "x", "a": "y"},
            {"prompt": "q", "completion": "zzz"},
            "has no column 'zzz' for --field completion; it has q, a",
        ),
        (
            {"meta": {"text": "x"}},
            {"text": "meta.text"},
            "--field text=meta.text names a nested column; only top-level",
        ),
        (
            {"instruction": "i", "output": "o", "context": "c"},
            {"input": "contxt"},
            "has no column 'contxt' for --field input",
        ),
        ({"input_ids": [1], "mask": [1]}, {"loss_mask": "msk"}, "has no column 'msk' for --field loss_mask"),
    ],
)
def test_a_column_that_is_not_there_is_named(record: Mapping[str, Any], fields: Mapping[str, str], words: str) -> None:
    assert words in refusal([record], fields=fields)


def test_a_column_with_a_dot_in_its_name_is_a_column() -> None:
    assert shape_of([{"a.b": "x"}], fields={"text": "a.b"}).column("text") == "a.b"


def test_mapped_message_lists_are_recognised_under_their_own_names() -> None:
    fields = {"prompt": "q", "completion": "a"}
    shape = shape_of([{"q": CHAT, "a": CHAT}], fields=fields)
    assert (shape.name, shape.column("prompt"), shape.column("completion")) == ("message_lists", "q", "a")
    message = refusal([{"q": CHAT, "a": "x"}], format=FormatName.PROMPT_COMPLETION, fields=fields)
    assert "(q, a) are lists of messages: --format messages" in message


def test_conversations_under_another_name_are_mapped() -> None:
    shape = shape_of([{"chat": CHAT}], fields={"messages": "chat"})
    assert (shape.name, shape.column("messages")) == ("openai", "chat")
    assert "chat" in columns_read(shape)
    assert shape.chooses_tokens


def test_a_mapped_mask_is_read_even_where_the_first_records_have_null() -> None:
    shape = shape_of([{"input_ids": [1], "mask": None}], fields={"loss_mask": "mask"})
    assert token_fields(shape).train == (("loss_mask", "mask"),)


def test_documents_with_chosen_tokens_stay_whole() -> None:
    assert not shape_of([{"text": "x"}]).chooses_tokens
    assert not shape_of([{"input_ids": [1], "attention_mask": [1]}]).chooses_tokens
    assert shape_of([{"prompt": "p", "completion": "c"}]).chooses_tokens
    for field in TRAIN_FIELDS:
        assert shape_of([{"input_ids": [1], field: [1]}]).chooses_tokens


def test_every_column_that_reading_looks_at_is_read(tmp_path: Path) -> None:
    tokens = columns_read(shape_of([{"input_ids": [1]}]))
    assert tokens >= {"input_ids", "attention_mask", "position_ids", "seq_lengths", *TRAIN_FIELDS}
    assert columns_read(shape_of([{"body": "x"}], fields={"text": "body"})) == {"body"}
    assert columns_read(shape_of([{"instruction": "i", "output": "o"}])) == {"instruction", "input", "output"}
    template = tmp_path / "p.jinja"
    template.write_text("{{ question }} {% if hint %}{{ hint }}{% endif %}")
    shape = shape_of([{"question": "q", "answer": "a"}], fields={"completion": "answer"}, template=template)
    assert columns_read(shape) >= {"question", "hint", "answer"}


def test_the_renderer_of_each_shape_reads_the_mapped_columns(tmp_path: Path) -> None:
    def text_of(record: Mapping[str, Any], **mapped: str) -> Rendered:
        rendered = renderer(shape_of([record], fields=mapped))(record)
        assert isinstance(rendered, Rendered)
        return rendered

    assert text_of({"body": "x"}, text="body") == Rendered("x")
    assert text_of({"q": "p", "a": "c"}, prompt="q", completion="a") == Rendered("pc", ((1, 2),), border=1)
    alpaca = {"i": "do", "x": "this", "o": "done"}
    assert text_of(alpaca, instruction="i", input="x", output="o") == Rendered(
        "do\n\nthis\n\ndone", ((10, 14),), border=10
    )
    template = tmp_path / "p.jinja"
    template.write_text("Q: {{ instruction }}\nA: ")
    record = {"q": "why", "output": "so"}
    shape = shape_of([record], fields={"instruction": "q"}, template=template)
    assert renderer(shape)(record) == Rendered("Q: why\nA: so", ((10, 12),), border=10)


def test_a_prompt_template_needs_one_completion(tmp_path: Path) -> None:
    template = tmp_path / "p.jinja"
    template.write_text("{{ q }}")
    assert "no column completion or output (has q)" in refusal([{"q": "x"}], template=template)
    both = {"q": "x", "completion": "c", "output": "o"}
    assert "both a completion and an output" in refusal([both], template=template)
    assert shape_of([both], fields={"completion": "output"}, template=template).column("completion") == "output"
    assert "lists of messages" in refusal([{"q": "x", "completion": CHAT}], template=template)
    assert "has no column 'cc'" in refusal([{"q": "x"}], fields={"completion": "cc"}, template=template)
    assert "has none" in refusal([{"text": "x"}], format=FormatName.TEXT, template=template)
    assert "did you mean 'completion'" in refusal([both], fields={"completio": "q"}, template=template)
    with pytest.raises(Misuse, match="cannot read the prompt template"):
        shape_of([both], template=tmp_path / "none.jinja")


def test_every_rule_names_fields_once() -> None:
    for rule in SHAPES.values():
        assert len({*rule.required, *rule.optional}) == len(rule.required) + len(rule.optional)
