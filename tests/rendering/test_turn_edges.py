"""Turns whose edges a template makes hard to tell: they are left out, and no role header ever trains."""

from typing import Any

import pytest

from packtool.errors import Refusal
from packtool.rendering import conversation
from packtool.rendering.chat import ChatRenderer, ChatSettings
from packtool.rendering.rendered import Rendered

SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
NAMES = (
    "{% for m in messages %}<|im_start|>{{ m.name or m.role }}<|im_end|>{{ m.content }}<|endoftext|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant<|im_end|>{% endif %}"
)
LENGTHS = (
    "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content|length }}\n\n{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant 5\n\n{% endif %}"
)
ECHOES = (
    "{% set ns = namespace(said='') %}{% for m in messages %}<|im_start|>{{ m.role }} ({{ ns.said }})\n"
    "{{ m.content }}<|im_end|>{% set ns.said = m.content %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant ({{ ns.said }})\n{% endif %}"
)


def rendered(template: str, **of_assistant: Any) -> Rendered | Refusal:
    settings = ChatSettings(
        templates=(("default", template),), origin="t", date="2000-01-01", variables="{}", special_tokens=SPECIAL
    )
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello you", **of_assistant},
        {"role": "user", "content": "so"},
        {"role": "assistant", "content": "bye", **of_assistant},
    ]
    return ChatRenderer(settings, lambda record: conversation.openai(record, False))({"messages": messages})


def trained(made: Rendered | Refusal) -> list[str]:
    assert isinstance(made, Rendered)
    assert made.spans is not None
    return [made.text[start:stop] for start, stop in made.spans]


def test_a_header_as_in_the_generation_prompt_is_found() -> None:
    assert trained(rendered(NAMES)) == ["hello you<|endoftext|>", "bye<|endoftext|>"]


@pytest.mark.parametrize(("template", "extra"), [(NAMES, {"name": "Bob"}), (LENGTHS, {}), (ECHOES, {})])
def test_a_turn_with_another_header_or_text_that_comes_again_is_left_out(template: str, extra: dict[str, str]) -> None:
    made = rendered(template, **extra)
    assert isinstance(made, Refusal)
    assert made.reason == "span_unprovable"
