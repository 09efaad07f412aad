"""Chat templates: a template and a conversation in, its text out, and where the template's own marks stand in it.

It knows no roles and no families of templates, and nothing of what trains; what runs the template is the sandbox.
"""

import datetime
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import numpy as np

from packtool.errors import Misuse
from packtool.rendering.sandbox import (
    MAX_NESTING,
    MAX_SOURCE,
    Marked,
    NotPlain,
    Raised,
    Sandbox,
    weigh_plain,
)

_GIVEN = frozenset({"messages", "tools", "add_generation_prompt"})
"""Names that say what is rendered; a record's own arguments cannot replace them."""

_LONGEST_REASON = 300


class TemplateError(Exception):
    """The template refused a conversation, or failed on it; the text is one short line, its own words if it raised."""


class SpanUnprovable(TemplateError):
    """The text of a generation block was changed, or thrown away, after it was rendered: where it is cannot be said."""


class ChatTemplate:
    """A compiled chat template. It renders one conversation at a time."""

    def __init__(self, source: str, origin: str, *, date: datetime.date, variables: Mapping[str, Any]) -> None:
        """Compile.

        Args:
            source: the template.
            origin: the file or name it came from, for messages.
            date: what ``strftime_now`` calls now (its first second).
            variables: what the template sees beside the conversation: special tokens by name (``bos_token``, ...)
                and arguments given for all conversations. Plain JSON data.

        Raises:
            Misuse: it does not compile, or a variable is no plain data; the message names file and line.
        """
        if len(source) > MAX_SOURCE:
            raise Misuse(
                f"{origin}: the chat template has {len(source):,} characters; at most {MAX_SOURCE:,} are taken"
            )
        self._sandbox = Sandbox(date)
        try:
            self._template = self._sandbox.from_string(source)
            names, self.has_marks = self._sandbox.inspect(source)
            """``has_marks``: whether a ``{% generation %}`` block stands in the template, reached or not."""
        except jinja2.TemplateSyntaxError as error:
            raise Misuse(f"{origin}:{error.lineno}: the chat template does not compile: {_line(error)}") from None
        except (RecursionError, MemoryError):
            raise Misuse(f"{origin}: the chat template does not compile: it is nested too deeply") from None
        except (SyntaxError, ValueError) as error:
            # Python's own limits on the code made of it, such as 20 loops within one another
            reason = error.msg if isinstance(error, SyntaxError) else _line(error)
            raise Misuse(f"{origin}: the chat template does not compile: {reason}") from None
        self.uses_date = "strftime_now" in names
        """Whether it names ``strftime_now``, so that its text may depend on the date."""
        try:
            self._variables, self._variable_weights, self._variable_size = _admit(dict(variables))
        except NotPlain as error:
            raise Misuse(f"{origin}: an argument of the chat template holds {error}; give JSON data") from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        extra: Mapping[str, Any] = {},
    ) -> str:
        """The text of a conversation, as ``transformers.apply_chat_template(..., tokenize=False)`` gives it.

        Args:
            messages: the conversation. Here and below: plain JSON data (numpy's scalars are taken as numbers).
            tools: schemas of functions, or None.
            add_generation_prompt: end with the header of an answer.
            extra: a record's own arguments of the template; they win over the variables.

        Raises:
            TemplateError: the template raised, failed, or asked for too much; or a value is no plain data.
        """
        return str(self._run(messages, tools, add_generation_prompt, extra, marking=False)[0])

    def render_marked(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        extra: Mapping[str, Any] = {},
    ) -> tuple[str, tuple[tuple[int, int], ...]]:
        """The text of a conversation and where its generation blocks stand in it.

        The places are those that ``return_assistant_tokens_mask`` of ``transformers`` uses, and right too where a
        block is printed through a macro, a ``set`` block, ``+`` or ``~``.

        Returns:
            the text; half-open character spans, none of them empty, rising and disjoint (of blocks within one
            another, the outer one).

        Raises:
            SpanUnprovable: a block's text was changed or thrown away by the template.
            TemplateError: as ``render``.
        """
        text, rendered = self._run(messages, tools, False, extra, marking=True)
        marks = text.marks if isinstance(text, Marked) else ()
        if len({number for _, _, number in marks}) != rendered:
            raise SpanUnprovable("a generation block's text is changed after it is rendered; its span cannot be placed")
        spans: list[tuple[int, int]] = []
        for start, end, _ in sorted(marks, key=lambda mark: (mark[0], -mark[1])):
            if not spans or start >= spans[-1][1]:
                spans.append((start, end))
        return str(text), tuple(spans)

    def _run(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        extra: Mapping[str, Any],
        *,
        marking: bool,
    ) -> tuple[str, int]:
        if extra and (taken := sorted(_GIVEN & extra.keys())):
            raise TemplateError(f"an argument of the template may not be called {taken[0]!r}")
        try:
            given, weights, size = _admit({**extra, "messages": messages, "tools": tools})
        except NotPlain as error:
            raise TemplateError(f"the conversation holds {error}, which is no JSON data") from None
        variables = {"documents": None, **self._variables, **given, "add_generation_prompt": add_generation_prompt}
        weights.update(self._variable_weights)
        try:
            return self._sandbox.run(self._template, variables, weights, size + self._variable_size, marking=marking)
        except Raised as error:
            raise TemplateError(_line(error)) from None
        except Exception as error:
            # Whatever a template makes Python raise, it is this conversation that cannot be rendered.
            raise TemplateError(self._reason(error)) from None

    def _reason(self, error: Exception) -> str:
        if isinstance(error, RecursionError):
            reason = "it nests too deeply"
        elif isinstance(error, MemoryError):
            reason = "it needs too much memory"
        elif isinstance(error, jinja2.TemplateError):
            reason = _line(error)
        else:
            reason = f"{type(error).__name__}: {_line(error)}"
        return f"the template failed in line {self._line_of(error)}: {reason}"

    def _line_of(self, error: Exception) -> int:
        """The line of the template that ran when an error was raised; the innermost, with macros."""
        line = 1
        traceback = error.__traceback__
        while traceback is not None:
            if traceback.tb_frame.f_globals.get("__jinja_template__") is self._template:
                line = self._template.get_corresponding_lineno(traceback.tb_lineno)
            traceback = traceback.tb_next
        return line


def _admit(values: dict[str, Any]) -> tuple[dict[str, Any], dict[int, int], int]:
    """Values for a template as plain JSON data, the weights of what is in them, and of all of it.

    Raises:
        NotPlain: a value is something else.
    """
    weights: dict[int, int] = {}
    try:
        return values, weights, weigh_plain(values, weights)
    except NotPlain:
        # Rare: what reads records gives plain data, and looking is cheaper than copying.
        plain = _plain(values)
        weights.clear()
        return plain, weights, weigh_plain(plain, weights)


def _plain(value: Any, depth: int = 1) -> Any:
    """A copy that is made of Python's own types: of subclasses, numpy's scalars, tuples and other mappings."""
    if depth > MAX_NESTING + 1:
        raise NotPlain(f"lists and objects more than {MAX_NESTING} deep")
    if isinstance(value, np.generic) and not isinstance(value, str | bytes):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return {_plain(key, depth + 1): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in value]
    return value


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def _line(error: BaseException) -> str:
    """An error's text in one short line, without what differs from process to process."""
    text = " ".join(str(error)[: 4 * _LONGEST_REASON].split())
    return _ADDRESS.sub("", text)[:_LONGEST_REASON]
