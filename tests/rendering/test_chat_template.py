"""Chat templates: their text is transformers', their marks are where the text is, and what they refuse has words."""

import copy
import datetime
import functools
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.utils import chat_template_utils

from packtool.errors import Misuse
from packtool.rendering.chat_template import ChatTemplate, SpanUnprovable, TemplateError
from packtool.rendering.sandbox import MAX_SOURCE

DATE = datetime.date(2026, 11, 3)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}

_trl = importlib.util.find_spec("trl")
assert _trl is not None
assert _trl.submodule_search_locations is not None
TEMPLATES = {
    path.stem: path.read_text(encoding="utf-8")
    for path in sorted((Path(_trl.submodule_search_locations[0]) / "chat_templates").glob("*.jinja"))
}


class FrozenDatetime(datetime.datetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> "FrozenDatetime":
        return cls(DATE.year, DATE.month, DATE.day, tzinfo=tz)


@pytest.fixture(autouse=True)
def frozen_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template_utils, "datetime", FrozenDatetime)


@functools.cache
def compiled(source: str) -> ChatTemplate:
    return with_variables(source)


def with_variables(source: str, **variables: Any) -> ChatTemplate:
    return ChatTemplate(source, "chat_template.jinja", date=DATE, variables={**TOKENS, **variables})


def theirs(
    source: str, messages: Sequence[Any], tools: Sequence[Any] | None = None, **arguments: Any
) -> tuple[str, tuple[tuple[int, int], ...]]:
    """What transformers renders, and the spans of generation blocks as it computes them."""
    texts, spans = chat_template_utils.render_jinja_template(
        [copy.deepcopy(list(messages))],
        tools=copy.deepcopy(tools),
        chat_template=source,
        return_assistant_tokens_mask="{% generation" in source or "{%- generation" in source,
        **TOKENS,
        **arguments,
    )
    return texts[0], tuple(span for span in (spans[0] if spans else ()) if span[0] < span[1])


def message(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def reasoned(content: str, thought: str, **more: Any) -> dict[str, Any]:
    # transformers gives a thought under both names
    return message("assistant", content, reasoning_content=thought, thinking=thought, **more)


TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": 'the "weather", é, <here>',
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Köln", "Rome"], "description": "where"},
                "days": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}},
            },
            "required": ["city"],
        },
    },
}
CALL = {
    "type": "function",
    "id": "abc123456",
    "function": {"name": "weather", "arguments": {"city": "Köln", "days": [{"n": 1}], "x": 1.5, "y": True, "z": None}},
}
RESULT = message("tool", '{"sky": "blue"}', name="weather", tool_call_id="abc123456")

CONVERSATIONS = {
    "plain": [message("user", "hi"), message("assistant", "yo")],
    "several turns": [
        message("system", "be brief"),
        message("user", " a "),
        message("assistant", "\n b "),
        message("user", "c"),
        message("assistant", "]]"),
    ],
    "reasoning": [
        message("user", "x"),
        message("assistant", "<think>\nr\n</think>\n\ny"),
        message("user", "q"),
        reasoned("z", "why"),
    ],
    "tools": [message("user", "w"), message("assistant", "", tool_calls=[CALL]), RESULT, message("assistant", "fine")],
    "tools and reasoning": [
        message("system", ""),
        message("user", "w"),
        reasoned("t", "r", tool_calls=[CALL, CALL]),
        RESULT,
        RESULT,
        message("assistant", "fine"),
        message("user", "ok"),
        message("assistant", "bye"),
    ],
    "two answers": [message("user", "x"), message("assistant", "a"), message("assistant", "b")],
    "a tool at the end": [message("user", "x"), RESULT],
    "an answer first": [message("assistant", "x")],
    "a question alone": [message("user", "x")],
    "parts": [
        message("user", [{"type": "text", "text": "p1"}, {"type": "text", "text": "p2"}]),
        message("assistant", [{"type": "text", "text": "q"}]),
    ],
    "a developer": [message("developer", "d"), message("user", "u"), message("assistant", "a")],
    "odd texts": [message("user", "🎉<|im_end|>\r\n{{ x }}‮ש"), message("assistant", "    code\n\tx\n\n")],
    "an unknown role": [message("alien", "x")],
    "no content": [message("user", "x"), {"role": "assistant"}],
    "nothing": [],
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_text_of_every_stock_template_is_that_of_transformers(name: str) -> None:
    source = TEMPLATES[name]
    template = compiled(source)
    rendered = 0
    for messages in CONVERSATIONS.values():
        for tools in (None, [TOOL]):
            for prompt in (False, True):
                for arguments in ({}, {"enable_thinking": False}):
                    try:
                        wanted, _ = theirs(source, messages, tools, add_generation_prompt=prompt, **arguments)
                    except Exception:  # whatever they fail with
                        with pytest.raises(TemplateError):
                            template.render(messages, tools=tools, add_generation_prompt=prompt, extra=arguments)
                        continue
                    text = template.render(messages, tools=tools, add_generation_prompt=prompt, extra=arguments)
                    assert text == wanted
                    rendered += 1
    assert rendered > 20


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name.endswith("_training")])
def test_the_marks_of_every_stock_template_are_those_of_transformers(name: str) -> None:
    source = TEMPLATES[name]
    template = compiled(source)
    assert template.has_marks
    marked = 0
    for messages in CONVERSATIONS.values():
        for tools in (None, [TOOL]):
            try:
                wanted = theirs(source, messages, tools)
            except Exception:  # whatever they fail with
                continue
            assert template.render_marked(messages, tools=tools) == wanted
            assert template.render(messages, tools=tools) == wanted[0]
            marked += bool(wanted[1])
    assert marked


contents = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        ["", " ", "]]", "<think>\na\n</think>\n\nb", "<|im_end|>", "\r\n", "    x = 1\n", "{{ a }}", "'", "🎉"]
    ),
)
conversations = st.lists(st.tuples(contents, contents), min_size=1, max_size=4).map(
    lambda pairs: [m for ask, answer in pairs for m in (message("user", ask), message("assistant", answer))]
)


@pytest.mark.parametrize("name", ["qwen3_training", "llama3_training", "gemma3_training", "gptoss_training", "gemma4"])
@given(messages=conversations)
def test_text_and_marks_of_any_conversation_are_those_of_transformers(
    name: str, messages: list[dict[str, Any]]
) -> None:
    template = compiled(TEMPLATES[name])
    assert template.render_marked(messages) == theirs(TEMPLATES[name], messages)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_conversation_of_a_thousand_messages_is_within_the_bounds(name: str) -> None:
    # Templates of models that see want parts.
    seeing = any(family in name for family in ("idefics", "llava", "smolvlm", "_vl"))
    messages = [
        message(role, [{"type": "text", "text": text}] if seeing else text)
        for i in range(500)
        for role, text in (("user", f"ask {i}"), ("assistant", f"answer {i}"))
    ]
    tools = [{**TOOL, "function": {**TOOL["function"], "name": f"f{i}"}} for i in range(100)]  # type: ignore[dict-item]
    assert "answer 499" in compiled(TEMPLATES[name]).render(messages, tools=tools)


def test_a_record_of_many_megabytes_is_within_the_bounds() -> None:
    content = "Ein Satz mit </think> und\nZeilen. " * 250_000
    messages = [message("user", content), message("assistant", content)]
    for name in ("qwen3", "llama3", "gemma3", "gptoss", "gemma4", "deepseekv3"):
        assert len(compiled(TEMPLATES[name]).render(messages)) > len(content)


MARKED = {
    "in the open": "{% for m in messages %}{{ m.role }}:{% generation %}{{ m.content }}{% endgeneration %};"
    "{% endfor %}",
    "in a macro": "{% macro turn(m) %}{{ m.role }}:{% generation %}{{ m.content }}{% endgeneration %};{% endmacro %}"
    "{% for m in messages %}{{ turn(m) }}{% endfor %}",
    "in macros of macros": "{% macro said(m) %}{% generation %}{{ m.content }}{% endgeneration %}{% endmacro %}"
    "{% macro turn(m) %}{{ m.role }}:{{ said(m) }};{% endmacro %}{% for m in messages %}{{ turn(m) }}{% endfor %}",
    "in a set block": "{% for m in messages %}{% set x %}{{ m.role }}:{% generation %}{{ m.content }}"
    "{% endgeneration %};{% endset %}{{ x }}{% endfor %}",
    "added": "{% for m in messages %}{% set x %}{% generation %}{{ m.content }}{% endgeneration %}{% endset %}"
    "{{ m.role + ':' + x + ';' }}{% endfor %}",
    "added to one": "{% for m in messages %}{% set x %}{% generation %}{{ m.content }}{% endgeneration %}{% endset %}"
    "{{ m.role ~ ':' }}{{ x + ';' }}{% endfor %}",
    "joined": "{% for m in messages %}{% set x %}{% generation %}{{ m.content }}{% endgeneration %}{% endset %}"
    "{{ m.role ~ ':' ~ x ~ ';' }}{% endfor %}",
    "kept": "{% set ns = namespace(x='') %}{% for m in messages %}{% set x %}{{ m.role }}:{% generation %}"
    "{{ m.content }}{% endgeneration %};{% endset %}{% set ns.x = ns.x + x %}{% endfor %}{{ ns.x }}",
    "in a call block": "{% macro wrap() %}{{ caller() }};{% endmacro %}{% for m in messages %}{% call wrap() %}"
    "{{ m.role }}:{% generation %}{{ m.content }}{% endgeneration %}{% endcall %}{% endfor %}",
    "in a recursive loop": "{% for m in messages recursive %}{{ m.role }}:{% generation %}{{ m.content }}"
    "{% endgeneration %};{% endfor %}",
    "in one another": "{% for m in messages %}{{ m.role }}:{% generation %}{{ m.content[:1] }}{% generation %}"
    "{{ m.content[1:] }}{% endgeneration %}{% endgeneration %};{% endfor %}",
    "in a block": "{% block b %}{% for m in messages %}{{ m.role }}:{% generation %}{{ m.content }}{% endgeneration %};"
    "{% endfor %}{% endblock %}",
}


@pytest.mark.parametrize("name", MARKED)
@given(messages=conversations)
def test_marks_stand_where_the_text_of_their_blocks_is(name: str, messages: list[dict[str, Any]]) -> None:
    wanted, spans = "", []
    for turn in messages:
        wanted += f"{turn['role']}:"
        spans.append((len(wanted), len(wanted) + len(turn["content"])))
        wanted += f"{turn['content']};"
    template = compiled(MARKED[name])
    assert template.render_marked(messages) == (wanted, tuple(span for span in spans if span[0] < span[1]))
    assert template.render(messages) == wanted


@pytest.mark.parametrize(
    "use",
    [
        "{{ x|trim }}",
        "{{ x|upper }}",
        "{{ x[1:] }}",
        "{{ x.strip() }}",
        "{{ x|replace('a', 'b') }}",
        "{{ [x]|join }}",
        "{{ '%s' % x }}",
        "{{ '{}'.format(x) }}",
        "{{ x|tojson }}",
        "{{ x|safe }}",
        "{{ [x] }}",
        "{% filter upper %}{{ x }}{% endfilter %}",
        "{{ x|length }}",
        "",
    ],
)
def test_marks_of_a_changed_text_are_never_guessed(use: str) -> None:
    template = compiled("{% set x %}{% generation %} said {% endgeneration %}{% endset %}" + use)
    template.render([])
    with pytest.raises(SpanUnprovable, match="cannot be placed"):
        template.render_marked([])


def test_a_block_without_text_has_no_mark() -> None:
    assert compiled("a{% generation %}{% endgeneration %}b").render_marked([]) == ("ab", ())


def test_a_text_that_is_printed_twice_is_marked_twice() -> None:
    source = "{% set x %}{% generation %}ab{% endgeneration %}{% endset %}{{ x }}-{{ x }}"
    assert compiled(source).render_marked([]) == ("ab-ab", ((0, 2), (3, 5)))


@pytest.mark.parametrize(
    ("source", "has_marks"),
    [
        ("{% generation %}{% endgeneration %}", True),
        ("{%- if false %}{%- generation -%}x{%- endgeneration -%}{%- endif %}", True),
        ("{# {% generation %} #}", False),
        ("{% raw %}{% generation %}{% endraw %}", False),
        ("{{ '{% generation %}' }} generation {{ generation }}", False),
    ],
)
def test_marks_are_found_in_the_code_alone(source: str, has_marks: bool) -> None:
    assert compiled(source).has_marks is has_marks


@pytest.mark.parametrize(
    ("source", "uses_date"),
    [
        ("{{ strftime_now('%Y') }}", True),
        ("{% if strftime_now is defined %}{% endif %}", True),
        ("{% macro m() %}{{ strftime_now('%Y') }}{% endmacro %}", True),
        ("{# strftime_now #}{{ 'strftime_now' }}{{ messages.strftime_now }}", False),
        ("{{ date_string }}", False),
    ],
)
def test_a_date_is_used_where_its_function_is_named(source: str, uses_date: bool) -> None:
    assert compiled(source).uses_date is uses_date


def test_the_date_is_the_one_that_was_given() -> None:
    assert compiled("{{ strftime_now('%d %b %Y %H:%M:%S') }}").render([]) == "03 Nov 2026 00:00:00"


def test_a_records_own_arguments_win_over_the_variables() -> None:
    template = with_variables("{{ bos_token }}{{ a }}{{ b }}{{ documents }}", a=1, b=2)
    assert template.render([]) == "<s>12None"
    assert template.render([], extra={"b": 3, "documents": [], "bos_token": ""}) == "13[]"
    assert template.render([]) == "<s>12None"


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt"])
def test_a_records_own_arguments_are_not_the_conversation(name: str) -> None:
    with pytest.raises(TemplateError, match=name):
        compiled("").render([], extra={name: []})


def test_a_template_refuses_in_its_own_words() -> None:
    with pytest.raises(TemplateError) as refusal:
        compiled("{{ raise_exception('Roles  must\n alternate' + '!') }}").render([])
    assert str(refusal.value) == "Roles must alternate!"


def test_long_words_are_cut() -> None:
    with pytest.raises(TemplateError) as refusal:
        compiled("{{ raise_exception('a' * 1000000) }}").render([])
    assert 100 < len(str(refusal.value)) < 1000


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("\n\n{{ messages[0].x.y }}", "line 3: 'dict object' has no attribute 'x'"),
        ("{% macro m() %}\n{{ 1 + 'a' }}\n{% endmacro %}\n\n{{ m() }}", "line 2: TypeError: unsupported operand"),
        ("{{ 1 // 0 }}", "line 1: ZeroDivisionError"),
        ("{{ messages|tojson|length }}\n{{ nothing|tojson }}", "line 2: TypeError: Object of type Undefined"),
    ],
)
def test_a_failure_names_the_line_of_the_template(source: str, words: str) -> None:
    with pytest.raises(TemplateError) as refusal:
        compiled(source).render([message("user", "x")])
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("a\n{% if %}", "chat_template.jinja:2: the chat template does not compile"),
        ("{{ x|nofilter }}", "chat_template.jinja:1: the chat template does not compile: No filter named 'nofilter'"),
        ("\n{% for x in y %}", "chat_template.jinja:2"),
        ("{% break %}", "chat_template.jinja: the chat template does not compile: 'break' outside loop"),
        ("{{ " + "(" * 100_000, "nested too deeply"),
        ("{{ " + "[" * 5_000 + "]" * 5_000 + " }}", "nested too deeply"),
        ("{{ " + "not " * 50_000 + "x }}", "nested too deeply"),
        ("{{ " + "-" * 100_000 + "1 }}", "nested too deeply"),
        ("{{ x" + ".a" * 50_000 + " }}", "nested too deeply"),
        ("{{ x" + "|e" * 50_000 + " }}", "nested too deeply"),
        ("{{ x" + " or x" * 10_000 + " }}", "nested too deeply"),
        ("{% if x %}" * 5_000 + "{% endif %}" * 5_000, "nested too deeply"),
        ("{% for x in y %}" * 30 + "{% endfor %}" * 30, "too many statically nested blocks"),
        ("a" * (MAX_SOURCE + 1), "at most"),
    ],
    ids=range(14),
)
def test_a_template_that_does_not_compile_is_misuse(source: str, words: str) -> None:
    with pytest.raises(Misuse) as misuse:
        compiled(source)
    assert words in str(misuse.value)
    assert str(misuse.value).startswith("chat_template.jinja:")
    assert len(str(misuse.value)) < 500


def test_nothing_is_computed_while_compiling() -> None:
    for source in (
        "{{ 'a' * 10 ** 10 }}",
        "{{ 'a'|center(10 ** 10) }}",
        "{% if ['a'|center(10000000000)] %}{% endif %}",
    ):
        compiled(source)  # its rendering is what fails


class Text(str):
    pass


class Number(int):
    pass


def test_values_that_mean_plain_data_are_taken_as_such() -> None:
    messages = (
        {"role": Text("user"), "content": np.str_("x"), "n": np.int64(5), "f": np.float32(0.5), "b": np.bool_(False)},
        {"role": "assistant", "content": [Number(3), (1, 2)], "d": np.array([1.5])[0]},
    )
    plain = [
        {"role": "user", "content": "x", "n": 5, "f": 0.5, "b": False},
        {"role": "assistant", "content": [3, [1, 2]], "d": 1.5},
    ]
    template = compiled("{{ messages }}")
    assert template.render(messages) == template.render(plain) == str(plain)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"x", "a value of type bytes"),
        (datetime.date(2026, 1, 1), "a value of type date"),
        (np.array([1, 2]), "a value of type ndarray"),
        ({1, 2}, "a value of type set"),
        ({"a": [object()]}, "a value of type object"),
        ({1: 2}, "a key of type int"),
    ],
)
def test_values_that_are_no_plain_data_are_refused(value: Any, words: str) -> None:
    template = compiled("{{ messages }}")
    with pytest.raises(TemplateError, match=words):
        template.render([message("user", value)])
    with pytest.raises(TemplateError, match=words):
        template.render([], tools=[{"x": value}])
    with pytest.raises(TemplateError, match=words):
        template.render([], extra={"x": value})
    with pytest.raises(Misuse, match=words):
        with_variables("", x=value)


@pytest.mark.parametrize("deep", [[], (), {"a": 1}], ids=["list", "tuple", "dict"])
def test_values_that_are_nested_without_end_are_refused(deep: Any) -> None:
    for _ in range(5_000):
        deep = {"a": deep} if isinstance(deep, dict) else type(deep)([deep])
    with pytest.raises(TemplateError, match="deep"):
        compiled("{{ messages }}").render([message("user", deep)])


def test_rendering_changes_nothing_that_it_is_given() -> None:
    messages, tools, extra = CONVERSATIONS["tools and reasoning"], [TOOL], {"a": [1]}
    before = copy.deepcopy((messages, tools, extra))
    for source in TEMPLATES.values():
        try:
            compiled(source).render(messages, tools=tools, extra=extra)
        except TemplateError:
            continue
    assert (messages, tools, extra) == before
