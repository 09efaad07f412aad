"""A compiled template: takes its source and data, gives texts, and says in one short line why there is none."""

import re
from collections.abc import Mapping
from typing import Any

import jinja2

from packtool.errors import Misuse
from packtool.rendering.sandbox.environment import Raised, Sandbox
from packtool.rendering.sandbox.meter import MAX_SOURCE

_LONGEST_REASON = 300


class Program:
    """A template that runs in a sandbox of its own."""

    def __init__(self, sandbox: Sandbox, source: str, origin: str, what: str) -> None:
        """Compile.

        Args:
            sandbox: what it runs in.
            source: the template.
            origin: the file or name it came from, for messages.
            what: what to call it in messages.

        Raises:
            Misuse: it does not compile; the message names file and line.
        """
        if len(source) > MAX_SOURCE:
            raise Misuse(f"{origin}: {what} has {len(source):,} characters; at most {MAX_SOURCE:,} are taken")
        self._sandbox = sandbox
        try:
            self._template = sandbox.from_string(source)
            names, self.has_marks = sandbox.inspect(source)
            """``has_marks``: whether a ``{% generation %}`` block stands in the template, reached or not."""
        except jinja2.TemplateSyntaxError as error:
            raise Misuse(f"{origin}:{error.lineno}: {what} does not compile: {words(error)}") from None
        except (RecursionError, MemoryError):
            raise Misuse(f"{origin}: {what} does not compile: it is nested too deeply") from None
        except (SyntaxError, ValueError) as error:
            # Python's own limits on the code made of it, such as 20 loops within one another
            reason = error.msg if isinstance(error, SyntaxError) else words(error)
            raise Misuse(f"{origin}: {what} does not compile: {reason}") from None
        self.names = frozenset(names)
        """The names that it looks up in what it is given, functions that it may call included."""

    def run(
        self, variables: Mapping[str, Any], weights: Mapping[int, int], size: int, *, marking: bool = False
    ) -> tuple[str, int]:
        """Render once, as ``Sandbox.run`` does; what it raises, ``reason`` puts into words."""
        return self._sandbox.run(self._template, variables, weights, size, marking=marking)

    def reason(self, error: Exception) -> str:
        """Why a render failed: the template's own words, if it raised."""
        if isinstance(error, Raised):
            return words(error)
        if isinstance(error, RecursionError):
            reason = "it nests too deeply"
        elif isinstance(error, MemoryError):
            reason = "it needs too much memory"
        elif isinstance(error, jinja2.TemplateError):
            reason = words(error)
        else:
            reason = f"{type(error).__name__}: {words(error)}"
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


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def words(error: BaseException) -> str:
    """An error's text in one short line, without what differs from process to process."""
    text = " ".join(str(error)[: 4 * _LONGEST_REASON].split())
    return _ADDRESS.sub("", text)[:_LONGEST_REASON]
