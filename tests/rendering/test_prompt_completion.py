"""Prompt and completion: the completion alone trains, and a template of the user's may make the prompt."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtool.errors import Misuse, Refusal
from packtool.rendering import Rendered
from packtool.rendering.prompt_completion import PromptTemplate, alpaca_prompt, column_prompt, render
from packtool.rendering.sandbox import meter
from tests.rendering.sandbox.hostile import HOSTILE, MESSAGES

plain = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def joined(record: dict[str, Any]) -> Rendered | Refusal:
    return render(record, column_prompt("prompt"), "completion")


def alpaca(record: dict[str, Any]) -> Rendered | Refusal:
    return render(record, alpaca_prompt("instruction", "input"), "output")


def made(template: str, record: dict[str, Any], names: dict[str, str] | None = None) -> str | Refusal:
    return PromptTemplate(template, "p.jinja", names or {})(record)


def reason_of(outcome: object) -> str:
    assert isinstance(outcome, Refusal)
    assert "\n" not in outcome.detail
    return outcome.reason


@given(plain, plain)
def test_prompt_and_completion_are_joined_with_nothing_between(prompt: str, completion: str) -> None:
    rendered = joined({"prompt": prompt, "completion": completion})
    if not completion.strip():
        assert reason_of(rendered) == "empty"
        return
    assert isinstance(rendered, Rendered)
    assert rendered.text == prompt + completion
    assert rendered.spans is not None
    ((start, stop),) = rendered.spans
    assert (rendered.text[:start], rendered.text[start:stop]) == (prompt, completion)
    assert rendered.border == len(prompt)


def test_an_empty_prompt_is_no_fault() -> None:
    assert joined({"prompt": "", "completion": "c"}) == Rendered("c", ((0, 1),), border=0)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"completion": "c"}, "missing_field"),
        ({"prompt": None, "completion": "c"}, "missing_field"),
        ({"prompt": "p"}, "missing_field"),
        ({"prompt": "p", "completion": None}, "missing_field"),
        ({"prompt": ["p"], "completion": "c"}, "wrong_type"),
        ({"prompt": "p", "completion": 3}, "wrong_type"),
        ({"prompt": "\ud83d", "completion": "\ude00"}, "lone_surrogate"),
        ({"prompt": "p", "completion": "\ude00"}, "lone_surrogate"),
        ({"prompt": "p", "completion": ""}, "empty"),
        ({"prompt": "p", "completion": "\n "}, "empty"),
    ],
)
def test_each_reason(record: dict[str, Any], reason: str) -> None:
    assert reason_of(joined(record)) == reason


@pytest.mark.parametrize(
    ("record", "text"),
    [
        ({"instruction": "I", "output": "O"}, "I\n\nO"),
        ({"instruction": "I", "input": "", "output": "O"}, "I\n\nO"),
        ({"instruction": "I", "input": " \n", "output": "O"}, "I\n\nO"),
        ({"instruction": "I", "input": None, "output": "O"}, "I\n\nO"),
        ({"instruction": "I", "input": "X", "output": "O"}, "I\n\nX\n\nO"),
        ({"instruction": " I ", "input": " X", "output": " O"}, " I \n\n X\n\n O"),
        ({"instruction": "", "input": "X", "output": "O"}, "\n\nX\n\nO"),
    ],
)
def test_alpaca_is_instruction_blank_line_input_blank_line_output(record: dict[str, Any], text: str) -> None:
    length = len(record["output"])
    border = len(text) - length
    assert alpaca(record) == Rendered(text, ((border, len(text)),), border=border)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"output": "O"}, "missing_field"),
        ({"instruction": "I"}, "missing_field"),
        ({"instruction": "I", "input": 3, "output": "O"}, "wrong_type"),
        ({"instruction": "I", "input": ["x"], "output": "O"}, "wrong_type"),
        ({"instruction": "I", "input": "\ud800", "output": "O"}, "lone_surrogate"),
        ({"instruction": "I", "output": " "}, "empty"),
    ],
)
def test_each_reason_of_alpaca(record: dict[str, Any], reason: str) -> None:
    assert reason_of(alpaca(record)) == reason


@pytest.mark.parametrize(
    ("template", "record", "prompt"),
    [
        ("Q: {{ q }}\nA: ", {"q": "x"}, "Q: x\nA: "),
        ("{{ q }}{% if hint %} ({{ hint }}){% endif %}", {"q": "x"}, "x"),
        ("{{ q }}{% if hint %} ({{ hint }}){% endif %}", {"q": "x", "hint": "y"}, "x (y)"),
        ("{{ q }}{% if hint %} ({{ hint }}){% endif %}", {"q": "x", "hint": None}, "x"),
        ("{{ hint or 'none' }}", {}, "none"),
        ("{{ hint | default('none') }}", {}, "none"),
        ("{% for c in choices %}{{ loop.index }}. {{ c }}\n{% endfor %}-", {"choices": ["a", "b"]}, "1. a\n2. b\n-"),
        ("{{ n + 1 }} {{ f }}", {"n": 4, "f": 0.5}, "5 0.5"),
        ("{{ q }}", {"q": "<b>&"}, "<b>&"),
        ("", {}, ""),
    ],
)
def test_a_template_makes_the_prompt(template: str, record: dict[str, Any], prompt: str) -> None:
    assert made(template, record) == prompt


def test_a_template_sees_the_same_numbers_from_every_kind_of_file() -> None:
    template = "{% for n in numbers %}{{ n }},{% endfor %}{{ numbers | length }}"
    assert made(template, {"numbers": np.array([1, 2])}) == made(template, {"numbers": [1, 2]}) == "1,2,2"


def test_a_template_may_use_the_names_of_fields() -> None:
    assert made("{{ instruction }} {{ q }}", {"q": "x"}, {"instruction": "q"}) == "x x"
    template = PromptTemplate("{{ instruction }} {{ other }}", "p.jinja", {"instruction": "q"})
    assert template.columns == {"q", "other"}


@pytest.mark.parametrize(
    ("template", "record", "reason"),
    [
        ("{{ q }}", {}, "missing_field"),
        ("{{ q }}", {"q": None}, "missing_field"),
        ("{{ q.a }}", {"q": {}}, "missing_field"),
        ("{{ q + 'x' }}", {}, "missing_field"),
        ("{{ q }}", {"q": ["a"]}, "wrong_type"),
        ("{{ q }}", {"q": {"a": 1}}, "wrong_type"),
        ("{{ q }}", {"q": np.array([1])}, "wrong_type"),
        ("{{ q }}", {"q": "\ud800"}, "lone_surrogate"),
        ("{{ q + 1 }}", {"q": "x"}, "template_error"),
        ("{{ 1 // 0 }}", {}, "template_error"),
        ("{{ range(1000000) | list | length }}", {}, "template_error"),
        ("{% include 'x' %}", {}, "template_error"),
        ("{{ ''.__class__.__mro__ }}", {}, "template_error"),
        ("{{ q.append(1) }}", {"q": []}, "template_error"),
        ("{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}", {}, "template_error"),
    ],
)
def test_what_a_template_cannot_make_has_a_reason(template: str, record: dict[str, Any], reason: str) -> None:
    assert reason_of(made(template, record)) == reason


@pytest.mark.parametrize("name", [*HOSTILE][::5])
def test_a_hostile_template_makes_no_prompt_each_time_for_the_same_reason(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few of them: the sandbox is that of chat templates, which meets them all."""
    monkeypatch.setattr(meter, "BASE_STEPS", meter.BASE_STEPS // 16)  # the same bounds, sooner reached
    template = PromptTemplate(HOSTILE[name], "p.jinja", {})
    refusals = [template({"messages": MESSAGES}) for _ in range(2)]
    assert refusals[0] == refusals[1]
    # Some print what is not there, a list or an object before they come to a bound.
    assert reason_of(refusals[0]) in ("template_error", "missing_field", "wrong_type")


@pytest.mark.parametrize("name", ["nested ranges", "macro without end", "doubling by +", "multiplying", "class"])
def test_what_asks_for_too_much_is_a_template_error(name: str) -> None:
    assert reason_of(PromptTemplate(HOSTILE[name], "p.jinja", {})({})) == "template_error"


def test_a_template_may_refuse_a_record_in_its_own_words() -> None:
    refused = made("{% if not q %}{{ raise_exception('ask something') }}{% endif %}{{ q }}", {"q": ""})
    assert refused == Refusal("template_error", "ask something")


def test_nothing_that_changes_from_run_to_run_can_be_printed() -> None:
    for source in ("{{ strftime_now('%Y') }}", "{{ lipsum() }}"):
        assert reason_of(made(source, {})) == "missing_field"
    with pytest.raises(Misuse, match="No filter named 'random'"):
        PromptTemplate("{{ q | random }}", "p.jinja", {})


def test_fields_that_a_template_does_not_read_may_hold_anything() -> None:
    assert made("{{ q }}", {"q": "x", "when": object()}) == "x"
    assert reason_of(made("{{ q }}{{ when }}", {"q": "x", "when": object()})) == "wrong_type"


def test_a_refused_prompt_is_the_refusal_of_the_record() -> None:
    assert reason_of(render({"completion": "c"}, PromptTemplate("{{ q }}", "p", {}), "completion")) == "missing_field"


def test_a_template_changes_no_record() -> None:
    record = {"q": [1]}
    made("{% set x = q %}{% set q = 5 %}{{ q }}", record)
    assert record == {"q": [1]}


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("a\n{{ b", r"p\.jinja:2: the prompt template does not compile"),
        ("{% if %}", r"p\.jinja:1: "),
        ("{{ a | nothing }}", r"p\.jinja:1: .*No filter named 'nothing'"),
        ("{% if a %}" * 200 + "{% endif %}" * 200, r"p\.jinja: the prompt template does not compile"),
    ],
)
def test_a_template_that_does_not_compile_names_file_and_line(template: str, words: str) -> None:
    with pytest.raises(Misuse, match=words) as caught:
        PromptTemplate(template, "p.jinja", {})
    assert "\n" not in str(caught.value)


def test_a_template_file_is_read_or_named(tmp_path: Path) -> None:
    path = tmp_path / "p.jinja"
    path.write_text("é{{ q }}", encoding="utf-8")
    assert PromptTemplate.read(path, {})({"q": "x"}) == "éx"
    path.write_bytes(b"\xe9")
    with pytest.raises(Misuse, match="not UTF-8"):
        PromptTemplate.read(path, {})
    with pytest.raises(Misuse, match="cannot read the prompt template: No such file"):
        PromptTemplate.read(tmp_path / "none", {})
