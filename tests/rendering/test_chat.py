"""What of a conversation trains: marks, roles, turns, messages and parts; token for token as transformers has it."""

import itertools
import json
import unicodedata
from collections.abc import Sequence
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtool.errors import Refusal
from packtool.rendering import Rendered
from packtool.rendering.chat import PARSED_ARGUMENTS, SPELLS_SPECIAL, joined
from packtool.tokenizer import chat_templates, find_tokenizer, load, special_token_texts
from tests.chats import (
    CONVERSATIONS,
    STYLES,
    TOKENIZERS,
    TOOLS,
    Both,
    Message,
    assistant,
    both,
    call,
    marked,
    refusal,
    render,
    renderer_of,
    settings_of,
    system,
    tokenizer_folder,
    tool,
    trained,
    unmarked,
    user,
)

CHATML = unmarked(marked("chatml"))
MARKED = marked("chatml")
BOTH = pytest.mark.parametrize("source", [CHATML, MARKED], ids=["unmarked", "marked"])
TALK = [system("S"), user("Q1"), assistant("A1"), user("Q2"), assistant("A2"), tool("T")]


def part(text: str, **said: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **said}


# --- token for token -----------------------------------------------------------------------------------------


def _with_tokens_of(tokenizer: Both) -> dict[str, Any]:
    return {"special_tokens": tokenizer.special, "variables": json.dumps(dict(tokenizer.variables))}


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("style", STYLES)
@given(data=st.data())
def test_tokens_and_labels_are_those_of_transformers(name: str, style: str, data: st.DataObject) -> None:
    """Of the marked template, of its unmarked twin, and of transformers on the marked one: one and the same."""
    tokenizer_folder(name)
    tokenizer = both(name)
    messages = data.draw(CONVERSATIONS[style])
    arguments: dict[str, Any] = {}
    if style == "tools" and data.draw(st.booleans()):
        arguments["tools"] = TOOLS
    if tokenizer.reference.backend_tokenizer.normalizer is not None:
        messages = json.loads(unicodedata.normalize("NFC", json.dumps(messages, ensure_ascii=False)))
    record, known = {"messages": messages, **arguments}, _with_tokens_of(tokenizer)
    by_marks = renderer_of(marked(style), **known)(record)
    by_turns = renderer_of(unmarked(marked(style)), **known)(record)
    assert by_turns == by_marks
    if isinstance(by_turns, Refusal):
        assert by_turns.reason == "empty", "blank messages, and a tokenizer without a BOS: nothing is printed"
        return
    assert tokenizer.encode(by_turns) == tokenizer.expected(marked(style), messages, **arguments)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["sample", "deepseek"])
def test_twenty_thousand_conversations_of_real_text_equal_transformers(name: str, sample_data: Any) -> None:
    tokenizer = both(name)
    lines = [json.loads(line)["text"] for line in (sample_data / "text.jsonl").read_bytes().splitlines()]
    pieces = [piece for text in lines for piece in text.split("\n\n") if piece]
    for style in STYLES:
        by_turns = renderer_of(unmarked(marked(style)), **_with_tokens_of(tokenizer))
        for number in range(20_000 // len(STYLES) // 2 + 1):
            texts = [pieces[(number * 7 + index * 13) % len(pieces)] for index in range(2 + number % 5)]
            messages = [(assistant if index % 2 else user)(text) for index, text in enumerate(texts)]
            rendered = by_turns({"messages": messages})
            assert isinstance(rendered, Rendered), rendered
            assert tokenizer.encode(rendered) == tokenizer.expected(marked(style), messages), messages


# --- the stock templates of real tokenizers --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "messages", "answers"),
    [
        ("llama3", TALK[:5], ["A1<|eot_id|>", "A2<|eot_id|>"]),
        ("gemma3", TALK[:5], ["A1<end_of_turn>", "A2<end_of_turn>"]),
        ("gemma3", [user("q"), assistant(" \n a\n ")], ["a<end_of_turn>"]),
        ("deepseek_v3", TALK[:5], ["A1<｜end▁of▁sentence｜>", "A2<｜end▁of▁sentence｜>"]),
        ("qwen3", TALK[:5], ["A1<|im_end|>", "<think>\n\n</think>\n\nA2<|im_end|>"]),
        (
            "qwen3",
            [user("q"), assistant("a", reasoning_content="r"), user("q"), assistant("<think>\nr2\n</think>\n\na2")],
            ["a<|im_end|>", "<think>\nr2\n</think>\n\na2<|im_end|>"],
        ),
        (
            "qwen3",
            [user("q"), assistant("", tool_calls=[call(city="Paris")]), tool("r"), assistant("a")],
            [
                '<tool_call>\n{"name": "get", "arguments": {"city": "Paris"}}\n</tool_call><|im_end|>',
                "<think>\n\n</think>\n\na<|im_end|>",
            ],
        ),
    ],
)
def test_stock_templates_train_the_answers_and_their_ends(
    name: str, messages: list[Message], answers: list[str]
) -> None:
    files = find_tokenizer(str(tokenizer_folder(name)))
    templates, _ = chat_templates(files, None)
    named, special = special_token_texts(files, load(files))
    changes = {"special_tokens": tuple(special), "variables": json.dumps(dict(named))}
    assert trained(render(dict(templates)["default"], messages, **changes)) == answers


# --- which turns ---------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    ("train_on", "expected"),
    [
        (("assistant",), ["A1<|im_end|>", "A2<|im_end|>"]),
        (("last",), ["A2<|im_end|>"]),
        (("user",), ["Q1<|im_end|>", "Q2<|im_end|>"]),
        (("assistant", "tool"), ["A1<|im_end|>", "A2<|im_end|>", "T<|im_end|>"]),
        (("system",), ["S<|im_end|>"]),
        (("nobody",), []),
    ],
)
def test_roles_say_which_turns_train(source: str, train_on: tuple[str, ...], expected: list[str]) -> None:
    assert trained(render(source, TALK, train_on=train_on)) == expected


@BOTH
def test_all_is_every_character(source: str) -> None:
    assert render(source, TALK, train_on=("all",)).spans is None


@BOTH
def test_the_end_of_turn_can_be_left_untrained(source: str) -> None:
    assert trained(render(source, TALK, end_of_turn=False)) == ["A1", "A2"]
    assert trained(render(source, TALK, end_of_turn=False, train_on=("last",))) == ["A2"]
    assert render(source, TALK, end_of_turn=False, train_on=("all",)).spans is None


def test_an_end_of_two_tokens_is_left_untrained_whole() -> None:
    assert trained(render(unmarked(marked("closing")), TALK[1:3], end_of_turn=False)) == ["A1"]


def test_tool_calls_are_text_of_the_turn_and_no_end_of_it() -> None:
    messages = [user("q"), assistant("Look:", tool_calls=[call(city="Paris")]), tool("r"), assistant("a")]
    first, second = trained(render(unmarked(marked("tools")), messages, end_of_turn=False))
    assert first == 'Look:\n<tool_call>\n{"name": "get", "arguments": {"city": "Paris"}}\n</tool_call>'
    assert second == "a"


def test_the_last_turn_of_the_assistant_may_stand_before_others() -> None:
    assert trained(render(CHATML, [user("q"), assistant("a"), user("b")], train_on=("last",))) == ["a<|im_end|>"]
    assert render(CHATML, [user("q")], train_on=("last",)).spans == ()


def test_marks_decide_where_only_the_assistant_is_asked_for() -> None:
    """Whatever they cover: here the header too, and a turn that says so in its text."""
    source = (
        "{% for m in messages %}{% if m.role == 'assistant' and 'skip' not in m.content %}{% generation %}"
        "{{ '<|im_start|>assistant\\n' + m.content + '<|im_end|>\\n' }}{% endgeneration %}{% else %}"
        "{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )
    messages = [user("q"), assistant("a"), user("q"), assistant("skip")]
    assert trained(render(source, messages)) == ["<|im_start|>assistant\na<|im_end|>\n"]
    assert trained(render(source, messages, end_of_turn=False)) == ["a", "skip"]
    assert trained(render(source, messages, train_on=("last",))) == ["skip<|im_end|>"]


def test_marks_that_cover_nothing_train_nothing() -> None:
    assert render(MARKED, [user("q")]).spans == ()
    assert render(CHATML, [user("q")]).spans == ()


def test_a_mark_whose_text_is_changed_afterwards_is_left_out() -> None:
    source = (
        "{% set x %}{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}{% endset %}"
    )
    assert refusal(source + "{{ x | upper }}", [assistant("a")]).reason == "span_unprovable"


# --- which messages and parts --------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("said", [{"train": False}, {"training": False}, {"loss": False}, {"weight": 0}])
def test_a_message_may_opt_out(source: str, said: dict[str, Any]) -> None:
    messages = [user("Q1"), assistant("A1", **said), user("Q2"), assistant("A2")]
    assert trained(render(source, messages)) == ["A2<|im_end|>"]


@BOTH
@pytest.mark.parametrize("said", [{"train": True}, {"training": True}, {"loss": True}, {"weight": 1}])
def test_a_message_may_opt_in(source: str, said: dict[str, Any]) -> None:
    messages = [user("Q1", **said), assistant("A1"), user("Q2"), assistant("A2")]
    assert trained(render(source, messages)) == ["Q1<|im_end|>", "A1<|im_end|>", "A2<|im_end|>"]
    assert trained(render(source, messages, train_on=("last",))) == ["Q1<|im_end|>", "A2<|im_end|>"]
    assert trained(render(source, messages, end_of_turn=False)) == ["Q1", "A1", "A2"]


def test_a_turn_that_opts_out_of_all_leaves_its_header() -> None:
    text = "<|im_start|>user\nQ1<|im_end|>\n<|im_start|>assistant\nA1<|im_end|>\n"
    rendered = render(CHATML, [user("Q1", train=False), assistant("A1")], train_on=("all",))
    assert rendered.text == text
    assert trained(rendered) == ["<|im_start|>user\n", "\n<|im_start|>assistant\nA1<|im_end|>\n"]


def test_choices_are_no_part_of_the_text() -> None:
    chosen = render(CHATML, [user("q", train=False), assistant("a", weight=1)])
    assert chosen.text == render(CHATML, [user("q"), assistant("a")]).text


PARTS = CHATML.replace("(message.content or '')", "(message.content | map(attribute='text') | join('|'))")


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([part("x"), part("y")], ["x|y<|im_end|>"]),
        ([part("x", train=False), part("y")], ["|y<|im_end|>"]),
        ([part("x"), part("y", loss=False)], ["x|", "<|im_end|>"]),
        ([part("x", weight=0), part("y", weight=0)], ["|", "<|im_end|>"]),
        ([part("x", train=True), part("y")], ["x|y<|im_end|>"]),
        ([part("xx", train=False), part("xx"), part("xx", train=False)], ["|xx|", "<|im_end|>"]),
        ([part("", train=False), part("y")], ["|y<|im_end|>"]),
    ],
)
def test_a_part_may_opt_out(parts: list[Any], expected: list[str]) -> None:
    assert trained(render(PARTS, [user([part("q")]), assistant(parts)])) == expected


def test_a_part_of_an_untrained_turn_may_opt_in_and_brings_no_end_of_turn() -> None:
    messages = [user([part("a"), part("b", train=True), part("c")]), assistant([part("d")])]
    assert trained(render(PARTS, messages)) == ["b", "d<|im_end|>"]
    messages = [user([part("q")]), assistant([part("a", train=True), part("b")], train=False)]
    assert trained(render(PARTS, messages)) == ["a"]


def test_parts_are_joined_as_the_template_does_and_are_no_strings() -> None:
    assert render(PARTS, [user([part("a"), part("b")])]).text == "<|im_start|>user\na|b<|im_end|>\n"


# --- reasons -------------------------------------------------------------------------------------------------


def test_what_the_template_refuses_is_left_out_with_its_words() -> None:
    refused = refusal(unmarked(marked("model_turns")), [user("a"), user("b")])
    assert (refused.reason, refused.detail) == (
        "template_error",
        "Roles must alternate user/assistant/user/assistant/...",
    )


def test_what_the_template_fails_on_is_left_out() -> None:
    refused = refusal("{{ messages[0].content.nothing.at.all }}", [user("a")])
    assert refused.reason == "template_error"


@pytest.mark.parametrize("source", ["", "{# nothing #}"])
def test_a_template_that_prints_nothing_leaves_nothing_to_train(source: str) -> None:
    assert refusal(source, TALK).reason == "empty"


def test_a_lone_surrogate_cannot_be_tokenized() -> None:
    assert refusal(CHATML, [user("\ud800"), assistant("a")]).reason == "lone_surrogate"
    assert refusal(MARKED, [user("q"), assistant("\ude00")]).reason == "lone_surrogate"


def test_a_bad_record_is_its_readers_refusal() -> None:
    assert refusal(CHATML, [{"content": "x"}]).reason == "bad_role"
    assert refusal(CHATML, []).reason == "empty"


# --- tools, variables, templates, notes ------------------------------------------------------------------------


def test_arguments_given_as_a_string_reach_the_template_as_they_are() -> None:
    calls = [{"type": "function", "function": {"name": "get", "arguments": '{"city":  "Paris"}'}}]
    source = "{% for m in messages %}{{ m.tool_calls[0].function.arguments }}{% endfor %}"
    rendered = render(source, [assistant("", tool_calls=calls)], train_on=("all",))
    assert (rendered.text, rendered.notes) == ('{"city":  "Paris"}', ())


@pytest.mark.parametrize("marks", [True, False])
def test_arguments_are_parsed_where_the_template_raises_on_a_string(marks: bool) -> None:
    calls = [{"type": "function", "function": {"name": "get", "arguments": '{"city":  "Paris"}'}}]
    source = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% generation %}{{ m.content or '' }}"
        "{% for c in m.tool_calls or [] %}{% for key, value in c.function.arguments.items() %}{{ key + '=' + value }}"
        "{% endfor %}{% endfor %}{{ '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}{% endfor %}"
    )
    messages = [assistant("", tool_calls=calls)]
    rendered = render(source if marks else unmarked(source), messages)
    assert trained(rendered) == ["city=Paris<|im_end|>"]
    assert rendered.notes == (PARSED_ARGUMENTS,)


def test_arguments_that_do_not_help_leave_the_templates_words() -> None:
    calls = [{"function": {"name": "get", "arguments": "not json"}}]
    source = "{{ raise_exception('no strings') if messages[0].tool_calls[0].function.arguments is string else 'x' }}"
    assert refusal(source, [assistant("", tool_calls=calls)]).detail == "no strings"


def test_the_template_for_tools_is_used_where_there_are_tools() -> None:
    templates = (("default", "D{{ messages[0].content }}"), ("tool_use", "T{{ messages[0].content }}"))
    changes: dict[str, Any] = {"templates": templates, "train_on": ("all",)}
    assert render("", [user("x")], **changes).text == "Dx"
    assert render("", [user("x")], {"tools": TOOLS}, **changes).text == "Tx"
    assert render("", [user("x")], {"tools": []}, **changes).text == "Tx"
    assert render("", [user("x")], {"tools": TOOLS}, train_on=("all",), templates=templates[:1]).text == "Dx"


def test_variables_of_a_record_win_over_those_of_the_run() -> None:
    source = "{{ tone }} {{ enable_thinking }} {{ bos_token }}"
    variables = json.dumps({"tone": "dry", "enable_thinking": True, "bos_token": "<s>"})
    changes: dict[str, Any] = {"variables": variables, "train_on": ("all",)}
    assert render(source, [user("x")], **changes).text == "dry True <s>"
    own = {"chat_template_kwargs": {"enable_thinking": False, "tone": None}}
    assert render(source, [user("x")], own, **changes).text == "None False <s>"


def test_variables_change_what_trains_and_are_not_remembered() -> None:
    renderer = renderer_of(unmarked(marked("thinking")))
    messages = [user("q"), assistant("a")]
    for extra in ({}, {"enable_thinking": False}, {}, {"enable_thinking": True}):
        rendered = renderer({"messages": messages, "chat_template_kwargs": extra})
        assert isinstance(rendered, Rendered)
        assert trained(rendered) == ["<think>\n\n</think>\n\na<|im_end|>"]


def test_the_date_is_frozen_and_counts_only_where_it_is_named() -> None:
    source = "{{ strftime_now('%d %b %Y') }} {{ messages[0].content }}"
    assert render(source, [user("x")], train_on=("all",), date="2024-02-29").text == "29 Feb 2024 x"
    assert settings_of(source).uses_date
    assert not settings_of("{# strftime_now #}{{ 'strftime_now' }}").uses_date
    assert date.fromisoformat(settings_of(source).date)


def test_a_conversation_that_spells_a_special_token_is_counted() -> None:
    assert render(CHATML, [user("q"), assistant("a")]).notes == ()
    assert render(CHATML, [user("<|im_end|>"), assistant("a")]).notes == (SPELLS_SPECIAL,)
    assert render(PARTS, [user([part("x</s>y")]), assistant([part("a")])]).notes == (SPELLS_SPECIAL,)
    assert render(CHATML, [user("<|im_end|>"), assistant("a")], special_tokens=()).notes == ()
    assert render(CHATML, [user("q"), {"role": "assistant", "content": None}]).notes == ()


# --- spans ---------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=6))
def test_joined_spans_rise_and_cover_the_same(spans: Sequence[tuple[int, int]]) -> None:
    found = joined(spans)
    covered = {index for start, stop in spans for index in range(start, stop)}
    assert {index for start, stop in found for index in range(start, stop)} == covered
    assert all(start < stop for start, stop in found)
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(found))


@given(
    CONVERSATIONS["tools"],
    st.sampled_from([("assistant",), ("last",), ("tool",), ("user", "assistant")]),
    st.booleans(),
)
def test_spans_stand_in_the_text_in_order(messages: list[Message], train_on: tuple[str, ...], end: bool) -> None:
    rendered = renderer_of(unmarked(marked("tools")), train_on=train_on, end_of_turn=end)({"messages": messages})
    assert not isinstance(rendered, Refusal)
    position = 0
    for start, stop in rendered.spans or ():
        assert position <= start < stop <= len(rendered.text)
        position = stop
