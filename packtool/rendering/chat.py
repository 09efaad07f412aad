"""A conversation to one text and the spans that carry loss: the template renders, marks or turns say what trains.

Joins conversation, template and turns; knows nothing of tokens but which strings are special.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import Any

from packtool.errors import Refusal
from packtool.rendering.chat_template import ChatTemplate, SpanUnprovable, TemplateError
from packtool.rendering.conversation import Conversation, Message, with_parsed_arguments
from packtool.rendering.rendered import Rendered
from packtool.rendering.turn_edges import Render, Unprovable
from packtool.rendering.turns import TurnFinder

Spans = tuple[tuple[int, int], ...]
ConversationReader = Callable[[Mapping[str, Any]], Conversation | Refusal]

PARSED_ARGUMENTS = "parsed_arguments"
"""Note: tool arguments given as a string were parsed, since the template would not take them."""
SPELLS_SPECIAL = "spells_special_token"
"""Note: what somebody says in the conversation spells a special token, and becomes one."""

ASSISTANT = ("assistant",)


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """How conversations are rendered and what of them trains. Small, picklable, part of the recipe of tokens."""

    templates: tuple[tuple[str, str], ...]
    """(name, source): "default", and "tool_use" where the tokenizer has one for conversations with tools."""
    origin: str
    """Where they come from, for messages."""
    date: str
    """What strftime_now prints, as an ISO date."""
    variables: str
    """Special tokens and --template-arg, as a JSON object."""
    special_tokens: tuple[str, ...]
    """The tokenizer's, as text."""
    train_on: tuple[str, ...] = ASSISTANT
    """Roles; or ("last",), the last assistant turn; or ("all",), every token."""
    end_of_turn: bool = True
    """Whether the end of a trained turn trains."""

    @property
    def uses_date(self) -> bool:
        """Whether a template may print the date."""
        return any(template.uses_date for template in _compiled(self).values())


NO_DATE = "2000-01-01"
"""Stands for the date where no template prints it."""


@lru_cache(maxsize=4)
def _compiled(settings: ChatSettings) -> dict[str, ChatTemplate]:
    day = date.fromisoformat(settings.date)
    return {
        name: ChatTemplate(source, settings.origin, date=day, variables=json.loads(settings.variables))
        for name, source in settings.templates
    }


class ChatRenderer:
    """Renders conversations by one set of settings; remembers what it learns of the templates."""

    def __init__(self, settings: ChatSettings, read: ConversationReader) -> None:
        """``read`` takes a record and gives its conversation."""
        self._settings = settings
        self._read = read
        self._templates = _compiled(settings)
        self._finders = {name: TurnFinder(settings.special_tokens) for name in self._templates}
        spelled = "|".join(map(re.escape, sorted(settings.special_tokens, key=len, reverse=True)))
        self._special = re.compile(spelled) if spelled else None

    def __call__(self, record: Mapping[str, Any]) -> Rendered | Refusal:
        """One record to its text and spans, or why there is none."""
        conversation = self._read(record)
        if isinstance(conversation, Refusal):
            return conversation
        name = "tool_use" if conversation.tools is not None and "tool_use" in self._templates else "default"
        try:
            return self._render(conversation, name)
        except (Unprovable, SpanUnprovable) as error:
            return Refusal("span_unprovable", str(error))
        except TemplateError as error:
            return Refusal("template_error", str(error))

    def _render(self, conversation: Conversation, name: str) -> Rendered | Refusal:
        template = self._templates[name]
        notes: tuple[str, ...] = ()
        messages: Sequence[Message] = conversation.messages
        if self._special is not None and _says(messages, self._special):
            notes = (SPELLS_SPECIAL,)

        def render(some: Sequence[Mapping[str, Any]], prompt: bool) -> str:
            return template.render(
                some, tools=conversation.tools, add_generation_prompt=prompt, extra=conversation.extra
            )

        try:
            text = render(messages, False)
        except TemplateError:
            parsed = with_parsed_arguments(conversation.messages)
            if parsed is None:
                raise
            messages = parsed
            text = render(messages, False)
            notes += (PARSED_ARGUMENTS,)
        try:
            text.isascii() or text.encode()
        except UnicodeEncodeError:
            return Refusal("lone_surrogate", "the conversation holds a lone surrogate; it cannot be tokenized")
        if not text:
            return Refusal("empty", "the template prints nothing for it")
        spans = self._spans(conversation, messages, text, name, render)
        return Rendered(text, spans, notes)

    def _spans(
        self, conversation: Conversation, messages: Sequence[Message], text: str, name: str, render: Render
    ) -> Spans | None:
        settings, template = self._settings, self._templates[name]
        chosen_by_record = bool(conversation.choices or conversation.part_choices)
        if template.has_marks and settings.train_on == ASSISTANT and settings.end_of_turn and not chosen_by_record:
            marked, spans = template.render_marked(messages, tools=conversation.tools, extra=conversation.extra)
            if marked != text:
                raise Unprovable("the template renders another text when its generation blocks are looked at")
            return joined(spans)
        if settings.train_on == ("all",):
            if not chosen_by_record:
                return None
            masked = {turn for turn in range(len(messages)) if conversation.choices.get(turn) is False}
            holes = self._of_turns(conversation, messages, text, name, render, masked, inverted=True)
            return _without(len(text), holes)
        trained = self._trained_by_role(messages)
        if conversation.choices:
            trained |= {turn for turn, choice in conversation.choices.items() if choice}
            trained -= {turn for turn, choice in conversation.choices.items() if not choice}
        return self._of_turns(conversation, messages, text, name, render, trained, inverted=False)

    def _trained_by_role(self, messages: Sequence[Message]) -> set[int]:
        if self._settings.train_on == ("last",):
            return set([turn for turn, message in enumerate(messages) if message["role"] == "assistant"][-1:])
        roles = self._settings.train_on
        return {turn for turn, message in enumerate(messages) if message["role"] in roles}

    def _of_turns(
        self,
        conversation: Conversation,
        messages: Sequence[Message],
        text: str,
        name: str,
        render: Render,
        turns: set[int],
        *,
        inverted: bool,
    ) -> Spans:
        """The spans of ``turns``, less the parts of them that say otherwise, and with parts of other turns that do.

        ``inverted``: being among ``turns`` means not to train.
        """
        finder = self._finders[name]
        found = finder.find(messages, text, render, turns, tools=conversation.tools, extra=conversation.extra)
        all_of_it = self._settings.end_of_turn or inverted
        spans = [
            (span.start, span.stop if all_of_it else span.text_stop)
            for spans_of_turn in found.values()
            for span in spans_of_turn
        ]
        if not conversation.part_choices:
            return joined(spans)
        trains = {place: (place[0] in turns) != inverted for place in conversation.part_choices}
        parts = [place for place, choice in conversation.part_choices.items() if choice is not trains[place]]
        regions = [finder.find_part(messages, text, render, *place) for place in parts]
        for (turn, _), region in zip(parts, regions, strict=True):
            if turn in turns:
                spans = [piece for span in spans for piece in _cut_out(span, (region.start, region.stop))]
            else:
                spans.append((region.start, region.stop))
        return joined(spans)


def _says(messages: Sequence[Message], wanted: re.Pattern[str]) -> bool:
    """Whether somebody's text has something in it."""
    search = wanted.search
    for message in messages:
        content = message.get("content")
        if isinstance(content, str):
            if search(content):
                return True
        elif content and any(search(part["text"]) for part in content):
            return True
    return False


def joined(spans: Sequence[tuple[int, int]]) -> Spans:
    """Spans in order, without empty ones; overlapping ones are one."""
    result: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if start >= stop:
            continue
        if result and start < result[-1][1]:
            result[-1] = (result[-1][0], max(stop, result[-1][1]))
        else:
            result.append((start, stop))
    return tuple(result)


def _cut_out(span: tuple[int, int], hole: tuple[int, int]) -> list[tuple[int, int]]:
    start, stop = max(span[0], hole[0]), min(span[1], hole[1])
    if start >= stop:
        return [span]
    return [piece for piece in ((span[0], start), (stop, span[1])) if piece[0] < piece[1]]


def _without(length: int, holes: Spans) -> Spans:
    spans: list[tuple[int, int]] = [(0, length)] if length else []
    for hole in holes:
        spans = [piece for span in spans for piece in _cut_out(span, hole)]
    return tuple(spans)
