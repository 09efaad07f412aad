"""Records with a prompt and a completion, both strings, joined with nothing between: the completion trains.

Alpaca's prompt is its instruction, a blank line, its input and a blank line where there is an input. Any
other prompt is made by a jinja2 template of the user's.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from packtool.addresses import refuse_address
from packtool.errors import Misuse, Refusal
from packtool.rendering.rendered import Rendered, string_field, type_name
from packtool.rendering.sandbox import NotPlain, Program, Sandbox, admit, words

PromptMaker = Callable[[Mapping[str, Any]], str | Refusal]


def render(record: Mapping[str, Any], make_prompt: PromptMaker, completion_column: str) -> Rendered | Refusal:
    """Prompt and completion as one text whose completion carries loss; a blank completion is ``empty``."""
    prompt = make_prompt(record)
    if isinstance(prompt, Refusal):
        return prompt
    completion = string_field(record, completion_column)
    if isinstance(completion, Refusal):
        return completion
    if not completion.strip():
        state = "holds only white space" if completion else "is empty"
        return Refusal("empty", f"field {completion_column!r} {state}")
    border = len(prompt)
    return Rendered(prompt + completion, ((border, border + len(completion)),), border=border)


def column_prompt(column: str) -> PromptMaker:
    """A prompt that stands in one column."""
    return lambda record: string_field(record, column)


def alpaca_prompt(instruction_column: str, input_column: str) -> PromptMaker:
    """Instruction, blank line, and, where there is an input, input and blank line."""

    def make(record: Mapping[str, Any]) -> str | Refusal:
        instruction = string_field(record, instruction_column)
        if isinstance(instruction, Refusal):
            return instruction
        if record.get(input_column) is None:  # optional: absent and null mean the same, no input
            return f"{instruction}\n\n"
        extra = string_field(record, input_column)
        if isinstance(extra, Refusal):
            return extra
        return f"{instruction}\n\n{extra}\n\n" if extra.strip() else f"{instruction}\n\n"

    return make


class _MissingValueError(jinja2.UndefinedError):
    """A template printed a field that the record does not have."""


class _Missing(jinja2.StrictUndefined):
    """A field that is not there: may be asked for (``{% if input %}``), never printed."""

    __slots__ = ()

    def __bool__(self) -> bool:  # type: ignore[override]
        return False


class _UnprintableError(Exception):
    """A template printed a value that is neither text nor a number."""


class _PromptSandbox(Sandbox):
    """The sandbox of prompts: knows no date, leaves white space alone, and prints text and numbers only."""

    def __init__(self) -> None:
        super().__init__(None, trims=False, undefined=_Missing)

    def printed(self, value: Any) -> str:
        # A list or object would be printed the way Python writes it, which no model should learn.
        if value is None:
            raise _MissingValueError("a field that is null is printed")
        if not isinstance(value, str | int | float | jinja2.Undefined):
            raise _UnprintableError(f"{type_name(value)} is printed, where text or a number can be")
        return self.text(value)


class PromptTemplate:
    """A user's jinja2 template over a record's fields, in the sandbox that chat templates run in."""

    def __init__(self, source: str, origin: str, names: Mapping[str, str]) -> None:
        """Compile.

        Args:
            source: the template.
            origin: the file it came from, for messages.
            names: field name to column, for names of the template that are not columns themselves.

        Raises:
            Misuse: it does not compile; the message names file and line.
        """
        sandbox = _PromptSandbox()
        self._program = Program(sandbox, source, origin, "the prompt template")
        self._columns = {name: names.get(name, name) for name in self._program.names}
        self.columns = frozenset(self._columns[name] for name in self._program.names - sandbox.globals.keys())
        """The columns that the template may read."""

    @classmethod
    def read(cls, path: Path, names: Mapping[str, str]) -> "PromptTemplate":
        """Compile the template in the file ``path``; misuse names it."""
        return cls(read_template(path), str(path), names)

    def __call__(self, record: Mapping[str, Any]) -> str | Refusal:
        """The prompt of one record: ``missing_field`` where it prints a field that is absent or null.

        Where it prints a list or an object, or is given what JSON cannot hold, ``wrong_type``; where it raises, fails
        or asks for too much, ``template_error``.
        """
        fields = {name: _listed(record[column]) for name, column in self._columns.items() if column in record}
        try:
            prompt, _ = self._program.run(*admit(fields))
            prompt.encode()
        except NotPlain as error:
            return Refusal("wrong_type", f"the prompt template is given {error}, which is no JSON data")
        except jinja2.UndefinedError as error:
            return Refusal("missing_field", f"the prompt template needs a field: {words(error)}")
        except _UnprintableError as error:
            return Refusal("wrong_type", f"in the prompt template, {error}")
        except UnicodeEncodeError:
            return Refusal("lone_surrogate", "the prompt holds a lone surrogate; it cannot be tokenized")
        except Exception as error:
            # Whatever a template does with a record's values, the record is left out with the words of the error.
            return Refusal("template_error", self._program.reason(error))
        return prompt


def read_template(path: Path) -> str:
    """The text of a template file.

    Raises:
        Misuse: it cannot be read or is not UTF-8.
    """
    refuse_address("--prompt-template", path)
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise Misuse(f"{path}: cannot read the prompt template: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Misuse(f"{path}: the prompt template is not UTF-8") from None


def _listed(value: Any) -> Any:
    # Readers of files with columns give numbers as arrays; a template should see what it sees from JSON.
    return value.tolist() if isinstance(value, np.ndarray) else value
