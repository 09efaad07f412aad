"""Chat templates: a template and a conversation in, its text out, and where the template's own marks stand in it.

It knows no roles and no families of templates, and nothing of what trains; what runs the template is the sandbox.
"""

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from packtool.errors import Misuse
from packtool.rendering.sandbox import Marked, NotPlain, Program, Sandbox, admit

_GIVEN = frozenset({"messages", "tools", "add_generation_prompt"})
"""Names that say what is rendered; a record's own arguments cannot replace them."""


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
        self._program = Program(Sandbox(date), source, origin, "the chat template")
        self.has_marks = self._program.has_marks
        """Whether a ``{% generation %}`` block stands in the template, reached or not."""
        self.uses_date = "strftime_now" in self._program.names
        """Whether it names ``strftime_now``, so that its text may depend on the date."""
        try:
            self._variables, self._variable_weights, self._variable_size = admit(dict(variables))
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
            given, weights, size = admit({**extra, "messages": messages, "tools": tools})
        except NotPlain as error:
            raise TemplateError(f"the conversation holds {error}, which is no JSON data") from None
        variables = {"documents": None, **self._variables, **given, "add_generation_prompt": add_generation_prompt}
        weights.update(self._variable_weights)
        try:
            return self._program.run(variables, weights, size + self._variable_size, marking=marking)
        except Exception as error:
            # Whatever a template makes Python raise, it is this conversation that cannot be rendered.
            raise TemplateError(self._program.reason(error)) from None
