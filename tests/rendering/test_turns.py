"""Trained spans of templates without marks: equal to marked twins, ours and TRL's, and never a guess."""

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtool.errors import Refusal
from packtool.rendering import Rendered
from packtool.rendering.chat_template import TemplateError
from packtool.rendering.turn_edges import TurnSpan
from packtool.rendering.turns import TurnFinder
from tests.chats import (
    CONVERSATIONS,
    STYLES,
    TOOLS,
    TRAPS,
    Message,
    alternating,
    assistant,
    call,
    disordered,
    marked,
    reasoning,
    refusal,
    render,
    renderer_of,
    special_tokens,
    system,
    tool,
    trained,
    unmarked,
    user,
    with_tools,
)

PLAIN = [user("Q1"), assistant("A1"), user("Q2"), assistant("A2")]


def spoken(rendered: Rendered) -> list[tuple[int, int]]:
    return list(rendered.spans or ())


# --- our own styles ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("style", "answers"),
    [
        ("bars", ["A1<｜end▁of▁sentence｜>", "A2<｜end▁of▁sentence｜>"]),
        ("chatml", ["A1<|im_end|>", "A2<|im_end|>"]),
        ("closing", ["A1<|end|>", "A2<|end|>\n</s>"]),
        ("headers", ["A1<|eot_id|>", "A2<|eot_id|>"]),
        ("inst", ["A1</s>", "A2</s>"]),
        ("model_turns", ["A1<end_of_turn>", "A2<end_of_turn>"]),
        ("plain", ["A1</s>", "A2</s>"]),
        ("thinking", ["A1<|im_end|>", "<think>\n\n</think>\n\nA2<|im_end|>"]),
        ("tools", ["A1<|im_end|>", "A2<|im_end|>"]),
    ],
)
def test_the_answers_and_their_ends_train_and_nothing_else(style: str, answers: list[str]) -> None:
    assert trained(render(unmarked(marked(style)), PLAIN)) == answers


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("style", STYLES)
@given(data=st.data())
def test_an_unmarked_style_trains_what_its_marked_twin_does(style: str, known: bool, data: st.DataObject) -> None:
    """With a tokenizer that has the template's special tokens, and with one that has none of them."""
    messages = data.draw(CONVERSATIONS[style])
    record = {"tools": TOOLS} if style == "tools" and data.draw(st.booleans()) else {}
    changes: dict[str, Any] = {} if known else {"special_tokens": ()}
    twin = renderer_of(marked(style), **changes)({"messages": messages, **record})
    ours = renderer_of(unmarked(marked(style)), **changes)({"messages": messages, **record})
    assert ours == twin
    assert isinstance(ours, Rendered), "nothing is left out"


@pytest.mark.parametrize("style", STYLES)
@given(data=st.data())
def test_looking_at_all_turns_at_once_finds_what_looking_at_each_does(style: str, data: st.DataObject) -> None:
    messages = data.draw(CONVERSATIONS[style])
    once = renderer_of(unmarked(marked(style)))({"messages": messages})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("packtool.rendering.turns.shapes_of", lambda _: None)
        assert renderer_of(unmarked(marked(style)))({"messages": messages}) == once


@pytest.mark.parametrize("style", STYLES)
@given(data=st.data())
def test_what_was_seen_before_changes_nothing(style: str, data: st.DataObject) -> None:
    conversations = data.draw(st.lists(CONVERSATIONS[style], min_size=2, max_size=4))
    renderer = renderer_of(unmarked(marked(style)))
    for messages in conversations:
        assert renderer({"messages": messages}) == renderer_of(unmarked(marked(style)))({"messages": messages})


# --- TRL's twins ---------------------------------------------------------------------------------------------


def _trl_twins() -> dict[str, tuple[str, str]]:
    spec = find_spec("trl")
    assert spec is not None, "trl belongs to the dev extras"
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "chat_templates"
    pairs = {path.stem.removesuffix("_training"): path for path in sorted(folder.glob("*_training.jinja"))}
    return {
        name: ((folder / f"{name}.jinja").read_text(), path.read_text())
        for name, path in pairs.items()
        if (folder / f"{name}.jinja").is_file()
    }


TRL = _trl_twins()
TRAINED_HEADERS = ("<｜Assistant｜>", "<｜tool▁outputs▁end｜>", "<|start|>assistant")
"""Role headers that some of TRL's twins train and packtool does not."""
NEEDS_PARTS = ("idefics3", "llava_next", "smolvlm")
"""Print nothing of a content that is a string: its text cannot be found, and is left out."""


def compare_with_trl(name: str, messages: Sequence[Message], record: Mapping[str, Any]) -> bool:
    """Whether there was something to compare; fails where the trained characters differ."""
    base, training = TRL[name]
    special = special_tokens(base + training)
    twin = renderer_of(training, special_tokens=special)({"messages": list(messages), **record})
    ours = renderer_of(base, special_tokens=special)({"messages": list(messages), **record})
    if isinstance(twin, Refusal):
        return False
    if isinstance(ours, Refusal):
        # Left out, never guessed. No twin can be compared with, but the text can.
        assert ours.reason in ("span_unprovable", "template_error"), ours
        return False
    if ours.text != twin.text:
        return False
    wanted = {index for start, stop in spoken(twin) for index in range(start, stop)}
    found = {index for start, stop in spoken(ours) for index in range(start, stop)}
    for start, _ in spoken(ours):
        for header in TRAINED_HEADERS:
            if ours.text.endswith(header, 0, start):
                wanted -= {*range(start - len(header), start)} - found
    differing = "".join(ours.text[index] for index in sorted(wanted ^ found))
    assert not differing.strip(), (differing, trained(ours), trained(twin))
    return True


def variants(messages: list[Message]) -> Iterator[list[Message]]:
    """A conversation, and others made of it that some twins print in the same way, where they print it in another.

    Some twins keep the reasoning of answers to earlier questions; one prints the next header behind the last answer;
    one takes tool arguments as objects, where the template takes strings.
    """
    yield messages
    yield [*messages, user("and?")]
    questions = [index for index, message in enumerate(messages) if message["role"] == "user"]
    if questions:
        yield messages[questions[-1] :]
        yield messages[: (*questions, len(messages))[1]]
    if any(message.get("tool_calls") for message in messages):
        yield [_with_arguments_as_strings(message) for message in messages]


def _with_arguments_as_strings(message: Message) -> Message:
    calls = [one["function"] for one in message.get("tool_calls", [])]
    said = [{**function, "arguments": json.dumps(function["arguments"])} for function in calls]
    return {**message, "tool_calls": [{**call(), "function": function} for function in said]} if said else message


def in_parts(messages: Sequence[Message]) -> list[Message]:
    return [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in messages]


def odd(trap: str) -> list[Message]:
    return [user(f"Q{trap}"), assistant(trap), user(trap), assistant(f"end{trap}")]


EXAMPLES: Mapping[str, list[Message]] = {
    "plain": PLAIN,
    "system": [system("Be kind."), user("hello"), assistant("hi there\n\nfriend")],
    "the same again": [user("x"), assistant("x"), user("x"), assistant("x")],
    "reasoning": [
        user("q"),
        assistant("a", reasoning_content="why"),
        user("q2"),
        assistant("a2", reasoning_content="why 2"),
    ],
    "reasoning in the text": [
        user("q"),
        assistant("<think>\nwhy\n</think>\n\na"),
        user("q2"),
        assistant("<think>\nw\n</think>\n\na2"),
    ],
    "tool": [
        user("weather?"),
        assistant("", tool_calls=[call(city="Paris")]),
        tool("sunny"),
        assistant("It is sunny."),
        user("thanks"),
        assistant("Welcome."),
    ],
    "two tools": [
        user("weather?"),
        assistant("Let me look.", tool_calls=[call(city="Paris"), call("other", n="x")]),
        tool("sunny"),
        tool("warm"),
        assistant("Sunny and warm."),
    ],
    "a trailing tool": [user("weather?"), assistant("", tool_calls=[call(city="Paris")]), tool("sunny")],
    "answers in a row": [user("q"), assistant("one"), assistant("two")],
    "an answer first": [assistant("hello"), user("q"), assistant("a")],
    "a question last": [user("q"), assistant("a"), user("and?")],
}


@pytest.mark.parametrize("name", TRL)
def test_trl_twins_train_the_same_on_examples(name: str) -> None:
    conversations = [*EXAMPLES.values(), *map(odd, TRAPS)]
    conversations += [in_parts(messages) for messages in conversations if name in NEEDS_PARTS]
    compared = [any(compare_with_trl(name, variant, {}) for variant in variants(one)) for one in conversations]
    assert sum(compared) >= 40, f"only {sum(compared)} of {len(compared)} were rendered alike and not left out"


@given(
    st.sampled_from(sorted(TRL)),
    st.one_of(alternating(), reasoning(), with_tools(), disordered(("user", "assistant", "system", "tool"))),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_trl_twins_train_the_same_on_anything(
    name: str, messages: list[Message], with_schemas: bool, parts: bool, think: bool
) -> None:
    if parts and all(isinstance(message["content"], str) for message in messages):
        messages = in_parts(messages)
    record: dict[str, Any] = {"tools": TOOLS} if with_schemas else {}
    if think:
        record["chat_template_kwargs"] = {"enable_thinking": True}
    any(compare_with_trl(name, variant, record) for variant in variants(messages))


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3_instruct_2507", "llama3", "gemma3", "phi3", "qwen3_8", "gptoss"])
@given(messages=alternating())
def test_nothing_well_formed_is_left_out(name: str, messages: list[Message]) -> None:
    rendered = renderer_of(TRL[name][0])({"messages": messages})
    assert isinstance(rendered, Rendered), rendered


# --- templates that set traps --------------------------------------------------------------------------------

CHATML = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
ASKS = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"


@pytest.mark.parametrize(
    ("source", "answers"),
    [
        pytest.param(
            "{% for m in messages %}{{ '<|S|><|' + m.role + '|>' + m.content + '<|E|><|T|>' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|S|><|assistant|>' }}{% endif %}",
            ["A1<|E|><|T|>", "A2<|E|><|T|>"],
            id="two tokens end a turn",
        ),
        pytest.param(
            "{% for m in messages %}{{ '<|H|>' + m.role + '<|/H|>' + m.content + '<|E|>' }}{% endfor %}"
            "{{ '<|H|>assistant<|/H|>' }}",
            ["A1<|E|>", "A2<|E|>"],
            id="an open header always stands at the end",
        ),
        pytest.param(
            "{% for m in messages %}{{ '<|H|>' + m.role + '<|M|>' + m.content }}"
            "{{ '<|return|>' if loop.last and m.role == 'assistant' else '<|E|>' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|H|>assistant' }}{% endif %}",
            ["<|M|>A1<|E|>", "<|M|>A2<|return|>"],
            id="the last turn ends in another token",
        ),
        pytest.param(
            "{% for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}",
            ["A1<|user|>", "A2"],
            id="the next header ends a turn",
        ),
        pytest.param(
            "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}",
            ["A1", "A2"],
            id="nothing but white space ends a turn",
        ),
        pytest.param(
            "{% for m in messages %}{{ '[' + m.role + ']: ' + m.content + '\\n\\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '[assistant]: ' }}{% endif %}",
            ["A1", "A2"],
            id="a header in brackets follows white space",
        ),
        pytest.param(
            CHATML.replace("m.role", "m.role + (' in short' if m.content | length == 1 else '')") + ASKS,
            ["A1<|im_end|>", "A2<|im_end|>"],
            id="the header depends on the text",
        ),
        pytest.param(
            "{% for m in messages %}{{ '<' + m.role + '>' + m.content + '</' + m.role + '>\\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}",
            ["A1</assistant>", "A2</assistant>"],
            id="roles are tags",
        ),
        pytest.param(
            CHATML.replace("m.content", "('<think></think>' if m.role == 'assistant' else '') + m.content")
            + "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}",
            ["<think></think>A1<|im_end|>", "<think></think>A2<|im_end|>"],
            id="the prompt opens reasoning that the turn does without",
        ),
        pytest.param(
            CHATML
            + "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' }}{% endif %}",
            ["A1<|im_end|>", "A2<|im_end|>"],
            id="the prompt closes reasoning that the turn does not have",
        ),
        pytest.param(
            CHATML + ASKS.replace("prompt", "prompt and messages[-1].role == 'user'"),
            ["A1<|im_end|>", "A2<|im_end|>"],
            id="only a user is answered",
        ),
        pytest.param(
            "{{ '<|im_start|>system\\nHi<|im_end|>\\n' if messages[0].role != 'system' else '' }}" + CHATML + ASKS,
            ["A1<|im_end|>", "A2<|im_end|>"],
            id="a default system prompt",
        ),
        pytest.param(
            "{% if messages | length == 0 or messages[0].role != 'user' %}{{ raise_exception('ask first') }}{% endif %}"
            + CHATML
            + ASKS,
            ["A1<|im_end|>", "A2<|im_end|>"],
            id="no messages are refused",
        ),
        pytest.param(
            CHATML.replace("m.content", "m.content | upper") + ASKS,
            ["A1<|im_end|>", "A2<|im_end|>"],
            id="the text is changed",
        ),
    ],
)
def test_turns_are_found_whatever_surrounds_them(source: str, answers: list[str]) -> None:
    assert trained(render(source, PLAIN)) == answers


def test_reasoning_that_the_prompt_opens_belongs_to_the_answer() -> None:
    source = CHATML + "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}"
    messages = [user("q"), assistant("<think>\nwhy\n</think>\n\nbecause")]
    assert trained(render(source, messages)) == ["<think>\nwhy\n</think>\n\nbecause<|im_end|>"]
    forced = source.replace("m.content", "('<think>\\n' if m.role == 'assistant' else '') + m.content")
    messages = [user("q"), assistant("why\n</think>\n\nbecause")]
    assert trained(render(forced, messages)) == ["<think>\nwhy\n</think>\n\nbecause<|im_end|>"]


def test_a_message_that_is_printed_elsewhere_is_no_part_of_a_turn() -> None:
    """System prompts are printed first, wherever they stand; one of them even spells the header."""
    source = unmarked(marked("bars"))
    messages = [assistant("a"), system("<｜Assistant｜>"), system(" x"), user("q"), assistant("b"), system("last")]
    rendered = render(source, messages)
    assert rendered.text.startswith("<s><｜Assistant｜> xlast<｜Assistant｜>a")
    assert trained(rendered) == ["a<｜end▁of▁sentence｜>", "b<｜end▁of▁sentence｜>"]


def test_a_message_that_is_not_printed_trains_nothing() -> None:
    source = CHATML.replace("{{", "{% if m.content %}{{").replace("}}", "}}{% endif %}") + ASKS
    rendered = render(source, [user("q"), assistant(""), user("again"), assistant("a")])
    assert trained(rendered) == ["a<|im_end|>"]
    assert render(source, [user("q"), assistant("")]).spans == ()


def test_a_blank_message_that_is_not_printed_is_no_hindrance() -> None:
    source = CHATML.replace("{{", "{% if m.content.strip() %}{{").replace("}}", "}}{% endif %}") + ASKS
    messages = [system(" "), user("q"), assistant("a"), system("\n"), user("</s>"), assistant("b", reasoning="r")]
    assert trained(render(source, messages)) == ["a<|im_end|>", "b<|im_end|>"]


def test_what_closes_the_conversation_behind_messages_that_are_not_printed_is_no_end_of_turn() -> None:
    source = unmarked(marked("closing")).replace(
        "for message in messages", "for message in messages if message.role != 'tool'"
    )
    assert trained(render(source, [user("q"), assistant("a"), tool("r")])) == ["a<|end|>"]
    assert trained(render(source, [user("q"), assistant("a")])) == ["a<|end|>\n</s>"]


APART = (
    "{% for m in messages if m.role != 'tool' %}{% set i = messages.index(m) %}"
    "{{ '<|turn>' + m.role + '\\n' }}"
    "{% for c in m.tool_calls or [] %}{{ '<|call>' + c.function.name + (c.function.arguments | tojson) + '<call|>' }}"
    "{% endfor %}"
    "{% for r in messages[i + 1:] %}{% if r.role != 'tool' %}{% break %}{% endif %}"
    "{{ '<|result>' + r.content + '<result|>' }}{% endfor %}{{ m.content or '' }}{{ '<turn|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|turn>assistant\\n' }}{% endif %}"
)
"""Prints the results of tools inside the turn that called them, between the calls and the text."""


@pytest.mark.parametrize("arguments", [{}, {"city": "Paris"}, {"n": 1}])
def test_results_that_stand_between_calls_and_text_do_not_train(arguments: dict[str, Any]) -> None:
    messages = [user("q"), assistant("Sunny.", tool_calls=[call(**arguments)]), tool("r1"), tool("r2"), user("thanks")]
    calls, text = trained(render(APART, messages))
    assert calls.startswith("<|call>get{")
    assert calls.endswith("}<call|>")
    assert text == "Sunny.<turn|>"


OPENED = (
    "{% for m in messages if m.role != 'tool' %}{% set i = messages.index(m) %}"
    "{% set ns = namespace(opens=m.tool_calls) %}"
    "{{ '<|turn>' + m.role + '\n' if i == 0 or messages[i - 1].role == 'user' }}"
    "{{ '<|channel>thought\n' + m.reasoning_content + '<channel|>' if m.reasoning_content }}"
    "{% for c in m.tool_calls or [] %}{{ '<|call>' + (c.function.arguments | tojson) + '<call|>' }}{% endfor %}"
    "{% for r in messages[i + 1:] if m.tool_calls %}{% if r.role != 'tool' %}{% break %}{% endif %}"
    "{% set ns.opens = false %}{{ '<|result>' + r.content + '<result|>' }}{% endfor %}{{ m.content or '' }}"
    "{{ '<|result>' if ns.opens else '<turn|>\n' if not loop.nextitem or loop.nextitem.role == 'user' }}"
    "{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|channel>thought\n' if messages and messages[-1].role == 'tool' else '<|turn>assistant\n' }}{% endif %}"
)
"""Goes on in one turn after calls, opens a result that nobody gave, and asks for reasoning behind results."""


@pytest.mark.parametrize("text", ["", "Wait."])
@pytest.mark.parametrize(
    "following", [[], [user("?")], [assistant("Or not.")], [user("?"), assistant("Hm."), user("!")]]
)
def test_a_result_that_is_opened_and_not_given_ends_no_turn(text: str, following: list[Message]) -> None:
    messages = [user("q"), assistant(text, tool_calls=[call(city="Paris")]), *following]
    rendered = render(OPENED, messages)
    assert f"<call|>{text}<|result>" in rendered.text
    first, *rest = trained(rendered)
    assert first == f'<|call>{{"city": "Paris"}}<call|>{text}'
    assert rest == [f"{message['content']}<turn|>" for message in following if message["role"] == "assistant"]


def test_reasoning_that_the_prompt_opens_behind_results_belongs_to_the_answer() -> None:
    reasons = assistant("", tool_calls=[call(n=2)], reasoning_content="why")
    messages = [user("q"), assistant("", tool_calls=[call(n=1)]), tool("r"), reasons, tool("s"), assistant("b")]
    first, second, text = trained(render(OPENED, messages))
    assert (first, second) == ('<|call>{"n": 1}<call|>', '<|channel>thought\nwhy<channel|><|call>{"n": 2}<call|>')
    assert text == "b<turn|>"


def test_a_private_use_character_that_only_another_render_prints_is_no_stand_in() -> None:
    source = OPENED.replace("if m.reasoning_content }}", "if m.reasoning_content and loop.last }}")
    calls = assistant("", tool_calls=[call(n=1)], reasoning_content="\ue000\ue001\ue002")
    assert trained(render(source, [user("q"), calls, user("?"), assistant("a")])) == [
        '<|call>{"n": 1}<call|>',
        "a<turn|>",
    ]


def test_a_text_that_spells_all_that_follows_it_ends_where_it_ends() -> None:
    """What a call becomes only the template knows; it is looked for between the texts that are known."""
    follows = "<|im_end|>\n<|im_start|>user\n<tool_response>\nr\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    first, second = assistant(f"x{follows}y", tool_calls=[call(city=follows)]), assistant("", tool_calls=[call(n=1)])
    messages = [user("q"), first, tool("r"), second, tool("s"), assistant("z")]
    ours, twin = render(unmarked(marked("tools")), messages), render(marked("tools"), messages)
    assert ours == twin
    assert trained(ours)[0].startswith(f"x{follows}y\n<tool_call>")


def test_results_under_a_key_of_the_message_itself_are_never_guessed_at() -> None:
    calls, results = (f"(m.{key} | tojson if m.{key} else '')" for key in ("tool_calls", "tool_results"))
    source = CHATML.replace("m.content", f"{calls} + {results} + m.content")
    message = assistant("Sunny.", tool_calls=[call(city="Paris")], tool_results=[{"text": "21 degrees"}])
    refused = refusal(source + ASKS, [user("q"), message])
    assert (refused.reason, refused.detail) == (
        "span_unprovable",
        "message 2: what it says cannot be told from its tool_results",
    )


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (CHATML.replace("m.content", "'same'") + ASKS, "does not print its text"),
        (CHATML.replace("m.content", "(m.content | length | string)") + ASKS, "does not print its text"),
        (CHATML.replace("m.content", "(m.content | list | join('-'))"), None),
        (CHATML.replace("m.content", "(m.content | reverse | string)"), None),
        (CHATML + CHATML + ASKS, "cannot be told from"),
        ("{% for m in messages %}{{ m.role }}{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}", None),
    ],
)
def test_what_cannot_be_proven_is_left_out(source: str, words: str | None) -> None:
    """Where ``words`` is None the turns can be found after all: then they are the answers."""
    rendered = renderer_of(source)({"messages": [user("how"), assistant("so"), user("why"), assistant("well")]})
    if words is None:
        assert isinstance(rendered, Rendered), rendered
        assert all("how" not in text and "why" not in text for text in trained(rendered))
        return
    assert isinstance(rendered, Refusal)
    assert rendered.reason == "span_unprovable"
    assert words in rendered.detail


def test_a_conversation_that_would_take_forever_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packtool.rendering.turns._MOST_CHARACTERS", 2_000)
    messages = [user("q"), assistant("<think>\nr\n</think>\n\na"), user("q"), assistant("</think>x</think>")] * 4
    refused = refusal(unmarked(marked("thinking")), messages)
    assert (refused.reason, "too long" in refused.detail) == ("span_unprovable", True)


# --- how often it renders ------------------------------------------------------------------------------------


class Counted:
    """A template that counts how often it is asked."""

    def __init__(self, source: str) -> None:
        self.times = 0
        self._renderer = renderer_of(source)
        self._render = self._renderer._templates["default"].render
        self.finder = TurnFinder(special_tokens(source))

    def __call__(self, messages: Sequence[Mapping[str, Any]], prompt: bool) -> str:
        self.times += 1
        return self._render(messages, add_generation_prompt=prompt)

    def find(self, messages: Sequence[Message]) -> dict[int, tuple[TurnSpan, ...]]:
        """The spans of the answers, and how many renders that took, in ``times``."""
        rendered = self._render(messages)
        self.times = 0
        turns = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        return self.finder.find(messages, rendered, self, turns)


@pytest.mark.parametrize("style", ["chatml", "headers", "inst", "closing", "plain", "bars", "model_turns"])
def test_a_shape_of_conversation_is_looked_into_once(style: str) -> None:
    counted = Counted(unmarked(marked(style)))
    counted.find([user("a"), assistant("b"), user("c"), assistant("d")])
    assert counted.times > 0
    counted.find([user(" other "), assistant("texts\n"), user("of"), assistant("")])
    assert counted.times == 0


def test_a_longer_conversation_takes_no_more_renders() -> None:
    counted = Counted(unmarked(marked("chatml")))
    counted.find([user("a"), assistant("b")] * 10)
    few = counted.times
    counted.find([user("a"), assistant("b")] * 50)
    assert counted.times == few < 12


def test_tools_do_not_make_it_render_for_each_turn() -> None:
    counted = Counted(unmarked(marked("tools")))

    def of(calls: int) -> list[Message]:
        steps = [[assistant("", tool_calls=[call(n=index)]), tool(f"r{index % 2}")] for index in range(calls)]
        return [user("q"), *(message for step in steps for message in step), assistant("done")]

    counted.find(of(3))
    few = counted.times
    assert len(counted.find(of(40))) == 41
    assert counted.times <= few < 16


def test_a_template_that_refuses_a_prefix_does_not_stop_the_search() -> None:
    source = "{% if messages | length < 3 %}{{ raise_exception('too short') }}{% endif %}" + CHATML + ASKS
    assert trained(render(source, PLAIN)) == ["A1<|im_end|>", "A2<|im_end|>"]
    with pytest.raises(TemplateError, match="too short"):
        renderer_of(source)._templates["default"].render([user("q")])
