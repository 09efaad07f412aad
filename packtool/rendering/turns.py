"""Where a chat template puts each turn: found from the template's own behaviour, with no table of families.

Takes a template and one conversation, gives for chosen turns the character spans that the model would have to
produce: the turn's text, reasoning and tool calls, and its end of turn; never the role header. Every span is
checked against the one real render. Knows nothing of tokens but which strings are special.

The method, for turn i of a conversation whose render is R:

- its text: render again with the turn's text replaced by a private-use character that occurs nowhere. What the
  two renders have in common before and after it bounds the text, whatever the template does to other turns.
- its role header: what ``add_generation_prompt`` adds to the conversation before the turn, less a reasoning
  stub (``<think>``) at its end, which the model might as well produce, and less all that the same turn does without
  when it says other things and reasons nothing.
- its end: what follows the text in R, and in the render of the conversation cut off after the turn, agree for a
  stretch, and the whole special tokens in it end the turn. What opens something that somebody else says ends none:
  the generation prompt, or the result of a call, which a template may open before anybody gave it.

Most templates only put frames around texts. So the texts of all messages are replaced at once first: where R is
those frames around the messages' own texts, in one way only, that one render has told where every turn stands.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any

from packtool.rendering.chat_template import TemplateError
from packtool.rendering.frames import CALLS, REASONING, SPOKEN, Frames, Shape, shapes_of
from packtool.rendering.turn_edges import (
    Marks,
    Message,
    Prefixes,
    Region,
    Render,
    TurnSpan,
    Unprovable,
    common_prefix,
    common_suffix,
    difference,
    end_of_turn,
    find_header,
)

_REMEMBERED = 1_024
"""Shapes of conversations that a finder remembers."""
_MOST_CHARACTERS = 1 << 30
"""Rendered for one conversation, in all; a count, so that what is left out never depends on a machine."""


class TurnFinder:
    """Finds turns of conversations rendered with one template.

    Remembers the frames (what stands between the texts) of conversations of one shape, so that most conversations
    need no render of their own. What it finds does not depend on what it remembers.
    """

    def __init__(self, special_tokens: Iterable[str]) -> None:
        """``special_tokens``: the tokenizer's, as text."""
        ordered = sorted({token for token in special_tokens if token}, key=len, reverse=True)
        self._marks = Marks(re.compile("|".join(map(re.escape, ordered))) if ordered else None)
        self._frames: dict[Any, Frames | None] = {}

    def find(
        self,
        messages: Sequence[Message],
        rendered: str,
        render: Render,
        turns: Iterable[int],
        *,
        tools: Any = None,
        extra: Mapping[str, Any] | None = None,
    ) -> dict[int, tuple[TurnSpan, ...]]:
        """The spans of ``turns``, indices into ``messages``, in ``rendered``, which is ``render(messages, False)``.

        Args:
            messages: the conversation.
            rendered: its real render.
            render: the template, with this conversation's tools and variables.
            turns: which turns to find.
            tools: what ``render`` gives to the template as tools; None for none.
            extra: the other variables that it gives for this conversation alone.

        Returns:
            For each turn its span; several, rising, where the template prints something else between its tool
            calls and its text; none where the template does not print the message at all.

        Raises:
            Unprovable: a span does not follow.
        """
        wanted = sorted(set(turns))
        shapes = shapes_of(messages) if wanted else None
        if shapes is not None:
            key = (shapes, None if tools is None else repr(tools), repr(extra) if extra else "")
            for frames in self._frames_of(key, shapes, messages, render):
                found = frames.spans(wanted, messages, rendered, self._marks)
                if found is not None:
                    return {turn: (span,) for turn, span in found.items()}
        conversation = _Conversation(messages, rendered, render, self._marks)
        return {turn: conversation.spans(turn) for turn in wanted}

    def find_part(self, messages: Sequence[Message], rendered: str, render: Render, turn: int, part: int) -> Region:
        """Where the text of one content part of a turn stands.

        Raises:
            Unprovable: it does not follow.
        """
        parts = list(messages[turn]["content"])
        return _Conversation(messages, rendered, render, self._marks).part(turn, part, parts)

    def _frames_of(
        self, key: Any, shapes: tuple[Shape, ...], messages: Sequence[Message], render: Render
    ) -> Iterator[Frames]:
        """Frames that ``messages`` may have: those remembered, then its own."""
        known = key in self._frames
        if not known:
            if len(self._frames) >= _REMEMBERED:
                self._frames.clear()
            self._frames[key] = Frames.of(shapes, messages, render)
        if (frames := self._frames[key]) is not None:
            yield frames
        # Names and ids are no part of a shape, but a template may print them.
        if known and (own := Frames.of(shapes, messages, render)) is not None:
            yield own


class _NoRegion(Enum):
    """Why a message replaced by stand-ins shows no region."""

    UNSEEN = "the stand-ins do not show"
    TORN = "they bring a frame with them that the message's own text has not"


class _Conversation:
    """One conversation looked into by itself, whatever its template does."""

    def __init__(self, messages: Sequence[Message], rendered: str, render: Render, marks: Marks) -> None:
        self._messages = messages
        self._rendered = rendered
        self._real_render = render
        self._rendered_characters = 0
        self._marks = marks
        self._prefixes = Prefixes(messages, rendered, self._render, marks)
        self._regions: dict[int, list[Region]] = {}
        self._unused, self._also_unused = self._unused_characters()

    def spans(self, turn: int) -> tuple[TurnSpan, ...]:
        """The spans of a turn, or Unprovable."""
        why: Unprovable | None = None
        for attempt in (self._in_one, self._in_two):
            try:
                spans = attempt(turn)
                self._check_what_else_is_printed(turn, spans)
                return spans
            except Unprovable as error:
                why = why or error
        if self._is_passed_over(turn):
            return ()
        raise why or Unprovable(f"message {turn + 1}: the template does not print its text where it can be found")

    def part(self, turn: int, part: int, parts: list[Any]) -> Region:
        """Where one part's text stands."""
        changed = [*parts]
        changed[part] = {**parts[part], "text": self._unused}
        region = self._compare(turn, {**self._messages[turn], "content": changed})
        if not isinstance(region, Region):
            raise Unprovable(f"message {turn + 1}: the template does not say where part {part + 1} of it stands")
        return region

    def _in_one(self, turn: int) -> tuple[TurnSpan, ...]:
        """The turn as one span: its text, all it says, replaced at once."""
        why = Unprovable(f"message {turn + 1}: the template does not print its text where it can be found")
        for number, replaced in enumerate(self._replaced(turn)):
            region = self._compare(turn, replaced)
            if isinstance(region, Region):
                try:
                    low, high = self._neighbours(turn, region)
                    start = self._start(turn, region, low, is_all=number == 0)
                    span = self._ended(turn, start, region, high, replaced)
                    self._check_calls(turn, span)
                    return (span,)
                except Unprovable as error:
                    why = error
        raise why

    def _in_two(self, turn: int) -> tuple[TurnSpan, ...]:
        """The turn as its tool calls, and behind them and something else (their results), its text."""
        message = self._messages[turn]
        why = Unprovable(f"message {turn + 1}: its text and its tool calls cannot be told apart")
        if not message.get(CALLS):
            raise why
        called = {**message, CALLS: _called(message[CALLS], self._also_unused)}
        answered = _with_content(message, self._unused)
        calls, content = self._compare(turn, called), self._compare(turn, answered)
        if not isinstance(calls, Region) or not isinstance(content, Region) or calls.stop > content.start:
            raise why
        low, high = self._neighbours(turn, calls)
        # What stands between the calls and a text that follows them at once closes the calls.
        before = self._messages[:turn]
        ours = self._try([*before, answered])
        theirs = self._try([*before, _with_content(called, self._unused)])
        if ours is None or theirs is None:
            raise why
        behind, found, _ = ours[len(ours) - common_suffix(ours, theirs) :].partition(self._unused)
        closed = calls.stop + len(behind)
        if not found or closed > min(high, content.start) or not self._rendered.startswith(behind, calls.stop):
            raise why
        first = TurnSpan(self._start(turn, calls, low, is_all=False), closed, closed)
        _, high = self._neighbours(turn, content)
        return first, self._ended(turn, content.start, content, high, answered)

    def _check_calls(self, turn: int, span: TurnSpan) -> None:
        """Whether the turn's tool calls, if it prints any, and its text are in its span, or would be if it had one."""
        message = self._messages[turn]
        if not message.get(CALLS):
            return
        called = {**message, CALLS: _called(message[CALLS], self._also_unused)}
        for region in (self._compare(turn, called), self._compare(turn, _with_content(message, self._unused))):
            if isinstance(region, Region) and not span.start <= region.start <= region.stop <= span.stop:
                raise Unprovable(f"message {turn + 1}: its text and its tool calls stand apart")

    def _start(self, turn: int, region: Region, low: int, *, is_all: bool) -> int:
        """Where the turn begins: after its role header; else with its text, if ``region`` is all of that."""
        start = None
        if self._messages[turn].get("role") == "assistant":
            prompt = self._prefixes.prompt(turn)
            header = find_header(self._rendered, low, region, prompt.text, self._marks)
            start = header.of(self._rendered[low : region.stop])
        if is_all:
            return region.start if start is None else start
        # In a turn that says other things, all but its beginning differs. What opens its reasoning may stand in the
        # generation prompt, but is no header: a turn without reasoning does without. And where there is no header,
        # the turn goes on where the one before ended.
        silent = self._compare(turn, next(self._replaced(turn)))
        if isinstance(silent, Region) and low <= silent.start <= region.start:
            return silent.start if start is None else min(start, silent.start)
        if start is None:
            raise Unprovable(f"message {turn + 1}: where it begins cannot be told")
        return start

    def _ended(self, turn: int, start: int, region: Region, high: int, replaced: Message) -> TurnSpan:
        """The span of a turn that starts at ``start``, whose text ends with ``region``."""
        whole = self._rendered[region.stop : high]
        cut = self._after(turn, replaced, [])
        if high == len(self._rendered) and turn + 1 < len(self._messages):
            # No later message is printed behind it, so that the end of the conversation follows; but the turn is not
            # the last. What ends it is what would follow it too if a user went on.
            more = [*self._messages[turn + 1 :], {"role": "user", "content": self._also_unused}]
            goes_on = self._after(turn, replaced, more)
            if goes_on is not None and (agreed := common_prefix(whole, goes_on)) < len(whole):
                whole = whole[: self._marks.before_torn(whole, agreed)]
        openers = partial(self._prefixes.openers, turn)
        reach = end_of_turn(whole, cut, self._prefixes.prompt(turn).text, openers, self._marks)
        text_stop = region.stop + self._marks.trailing(whole[:reach])
        return self._without_opened_results(turn, TurnSpan(start, text_stop, region.stop + reach))

    def _without_opened_results(self, turn: int, span: TurnSpan) -> TurnSpan:
        """The span without what opens the results of the turn's calls.

        A template may print that behind calls that nobody has answered yet. It is the beginning of what somebody else
        says, like the header in a generation prompt, and so ends no turn.
        """
        if not self._messages[turn].get(CALLS) or not (result := self._opener_of_results(turn)):
            return span
        _, says_other_things, *_ = self._replaced(turn)
        said = self._compare(turn, says_other_things)
        if not isinstance(said, Region):
            return span
        begin = max(said.stop, span.start)
        place = self._rendered.find(result, begin, span.stop)
        if place < 0:
            return span
        stop = begin + len(self._rendered[begin:place].rstrip())
        return TurnSpan(span.start, min(span.text_stop, stop), stop)

    def _opener_of_results(self, turn: int) -> str:
        """The special token that opens what tools answer to a turn's calls; empty where nobody can say."""
        called = self._messages[turn][CALLS]
        known = called[0] if isinstance(called, list) and isinstance(called[0], dict) else {}
        function = known.get("function", known)
        named = {"tool_call_id": known.get("id"), "name": function.get("name") if isinstance(function, dict) else None}
        answer = {"role": "tool", **{key: value for key, value in named.items() if isinstance(value, str)}}
        answers = [{**answer, "content": self._unused}, {**answer, "content": self._also_unused}]
        rendered = self._try([*self._messages[: turn + 1], *answers])
        _, _, behind = (rendered or "").partition(self._unused)
        between, found, after = behind.partition(self._also_unused)
        if not found:
            return ""
        # What stands between two answers closes the one, as what follows the last does, and opens the other.
        opener = between[self._marks.before_torn(between, common_prefix(between, after)) :].lstrip()
        mark = self._marks.first(opener)
        return mark[0] if mark is not None and mark.start() == 0 else ""

    def _after(self, turn: int, replaced: Message, more: Sequence[Message]) -> str | None:
        """What follows the turn's text in the conversation up to it and ``more``; None where nobody can say."""
        before = self._messages[:turn]
        ours = self._try([*before, self._messages[turn], *more]) if more else self._prefixes(turn + 1)
        other = self._try([*before, replaced, *more])
        if ours is None or other is None or self._unused not in other:
            return None
        region = difference(ours, other, self._marks)
        return ours[region.stop :] if isinstance(region, Region) else None

    def _printed(self, turn: int) -> list[Region]:
        """Where a message's own text stands, as its replacements tell, the best first; nowhere if it is not printed."""
        if turn not in self._regions:
            found = [self._compare(turn, replaced) for replaced in self._replaced(turn)]
            regions = [one for one in found[:2] if isinstance(one, Region)]
            regions = regions or [one for one in found[2:] if isinstance(one, Region)]
            speaks = any(self._messages[turn].get(key) for key in SPOKEN)
            if not regions and _NoRegion.TORN in found and speaks and not self._is_passed_over(turn):
                raise Unprovable(f"message {turn + 1}: the template does not print its text where it can be found")
            self._regions[turn] = regions
        return self._regions[turn]

    def _is_passed_over(self, turn: int) -> bool:
        """Whether the template prints nothing of a message."""
        others = [*self._messages[:turn], *self._messages[turn + 1 :]]
        return bool(others) and self._try(others) == self._rendered

    def _replaced(self, turn: int) -> Iterator[Message]:
        """The message saying something else: all it says as one text; or each of its texts; or its content alone."""
        message = self._messages[turn]
        silent = {key: value for key, value in message.items() if key not in SPOKEN}
        yield _with_content({**silent, "content": message.get("content")}, self._unused)
        if not any(message.get(key) for key in SPOKEN[1:]):
            return
        changed = {key: self._unused for key in REASONING if message.get(key)}
        if message.get(CALLS):
            changed[CALLS] = _called(message[CALLS], self._unused)
        if message.get("content"):
            yield _with_content({**message, **changed}, self._unused)
        else:
            yield {**message, **changed}
        yield _with_content(message, self._unused)

    def _compare(self, turn: int, replaced: Message) -> Region | _NoRegion:
        """Where the render differs from that with a message replaced by stand-ins."""
        other = self._try([*self._messages[:turn], replaced, *self._messages[turn + 1 :]])
        if other is None or not (self._unused in other or self._also_unused in other):
            return _NoRegion.UNSEEN
        # Neither goes past the stand-in, which is in one of the two only.
        ours, marks = self._rendered, self._marks
        start = marks.before_torn(ours, common_prefix(ours, other))
        stop = marks.before_torn(ours, len(ours) - common_suffix(ours, other))
        if stop < start:
            return _NoRegion.TORN if ours[stop:start].strip() else Region(start, start)
        return Region(start, stop)

    def _neighbours(self, turn: int, region: Region) -> tuple[int, int]:
        """Between which characters the turn must lie: the end of the text before it, the start of the text behind.

        Not always those of the messages before and after: a template may print a message somewhere else.
        """
        low, high = 0, len(self._rendered)
        base = self._prefixes.prompt(turn).base if turn else None
        if base and len(base) <= region.start and self._rendered.startswith(base):
            low = len(base)
        for other in range(len(self._messages)):
            found = [] if other == turn else self._printed(other)
            if not found:
                continue
            # A message that says it in another way may change how others are printed: then all of those differ too.
            printed = next((one for one in found if one.stop <= region.start or region.stop <= one.start), None)
            if printed is None:
                raise Unprovable(f"message {turn + 1}: its text cannot be told from that of other messages")
            if printed.stop <= region.start:
                low = max(low, printed.stop)
            else:
                high = min(high, printed.start)
        cut = self._prefixes(turn + 1)
        if cut is not None and region.start <= len(cut) < region.stop and self._rendered.startswith(cut):
            raise Unprovable(f"message {turn + 1}: the template prints its text again behind its end")
        return low, high

    def _check_what_else_is_printed(self, turn: int, spans: Sequence[TurnSpan]) -> None:
        """A message may hold what others say, such as results of tools under a key of their own: that never trains."""
        message = self._messages[turn]
        more = {key: value for key, value in message.items() if key not in SPOKEN and isinstance(value, list | dict)}
        if not any(more.values()):
            return
        replaced = {key: _deep(value, self._unused) for key, value in more.items()}
        region = self._compare(turn, {**message, **replaced})
        if isinstance(region, Region) and any(span.start < region.stop and region.start < span.stop for span in spans):
            raise Unprovable(f"message {turn + 1}: what it says cannot be told from its {', '.join(more)}")

    def _render(self, messages: Sequence[Message], prompt: bool) -> str:
        text = self._real_render(messages, prompt)
        self._rendered_characters += len(text)
        if self._rendered_characters > _MOST_CHARACTERS:
            raise Unprovable("it is too long to be rendered again for each of its turns")
        return text

    def _try(self, messages: Sequence[Message]) -> str | None:
        try:
            return self._render(messages, False)
        except TemplateError:
            return None

    def _unused_characters(self) -> tuple[str, str]:
        # Not repr, which escapes these characters: what is not printed now may be printed in another render.
        said = self._rendered + json.dumps([*self._messages], ensure_ascii=False, default=str)
        unused = (chr(code) for code in range(0xE000, 0xF900) if chr(code) not in said)
        one, other = next(unused, None), next(unused, None)
        if one is None or other is None:
            raise Unprovable("the conversation uses every private-use character")
        return one, other


def _with_content(message: Message, text: str) -> Message:
    said: Any = [{"type": "text", "text": text}] if isinstance(message.get("content"), list) else text
    return {**message, "content": said}


def _called(calls: Any, text: str) -> Any:
    """Tool calls with other arguments; their names stay, since templates decide by them."""
    if isinstance(calls, list):
        return [_called(call, text) for call in calls]
    if not isinstance(calls, dict):
        return calls
    if isinstance(function := calls.get("function"), dict):
        return {**calls, "function": _called(function, text)}
    return {**calls, "arguments": _deep(calls["arguments"], text)} if "arguments" in calls else calls


def _deep(value: Any, text: str) -> Any:
    """``text`` for everything that a value holds, under the keys it has."""
    if isinstance(value, list) and value:
        return [_deep(entry, text) for entry in value]
    if isinstance(value, dict):
        return {key: _deep(entry, text) for key, entry in value.items()} or {text: text}
    return text
