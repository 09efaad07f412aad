"""Which format a run's records have, found from the first records of every source, and what reads one of them.

Takes parsed records; knows nothing of files. A new format is one entry in ``SHAPES``.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from packtool.config import FormatName, unknown_name
from packtool.errors import Misuse, Refusal, printable
from packtool.rendering import Renderer, conversation, prompt_completion, text
from packtool.rendering.chat import ChatRenderer, ChatSettings
from packtool.tokenized import SEGMENTS_COLUMN, TRAIN_FIELDS, TokenFields, restarts

HEAD_RECORDS = 100
"""Records of every source that the format is found from."""

Record = Mapping[str, Any]
_IMAGE_COLUMNS = ("image", "images", "pixel_values")


@dataclass(frozen=True, slots=True)
class RecordShape:
    """What every record of a run looks like; small, and sent to the workers."""

    name: str
    """The entry of ``SHAPES``."""
    format: FormatName
    columns: tuple[tuple[str, str], ...]
    """(field, column) of every field that is read: those a record must have, those it may have, and those of
    ``TRAIN_FIELDS`` that the first records have."""
    template: str | None = None
    """The source of the prompt template, where there is one."""
    template_origin: str = ""

    def column(self, field: str) -> str:
        """The column that holds ``field``: mapped, or of the same name."""
        return dict(self.columns).get(field, field)

    def has(self, field: str) -> bool:
        """Whether the records have ``field``."""
        return any(name == field for name, _ in self.columns)

    @property
    def chooses_tokens(self) -> bool:
        """Whether some tokens train and others do not, so that documents should stay whole."""
        if self.format is FormatName.TOKENS:
            return any(self.has(field) for field in TRAIN_FIELDS)
        return self.format is not FormatName.TEXT

    @property
    def describes(self) -> str:
        """For messages: the format and the columns that make it one."""
        told = (*SHAPES[self.name].required, *TRAIN_FIELDS)
        return f"{self.format} ({', '.join(column for field, column in self.columns if field in told)})"


@dataclass(frozen=True, slots=True)
class _ShapeRule:
    format: FormatName
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    strings: bool = False
    """Whether the required fields must be no lists of messages: those make it a conversation."""
    lists: bool = False
    """Whether the required fields must be lists of messages."""
    auto: bool = True
    """Whether it is found without being asked for."""
    read: conversation.Reader | None = None
    """For conversations: what makes one of a record."""


_CHAT_FIELDS = ("tools", "chat_template_kwargs")

SHAPES: Mapping[str, _ShapeRule] = {
    "text": _ShapeRule(FormatName.TEXT, ("text",)),
    "prompt_completion": _ShapeRule(FormatName.PROMPT_COMPLETION, ("prompt", "completion"), strings=True),
    "alpaca": _ShapeRule(FormatName.PROMPT_COMPLETION, ("instruction", "output"), ("input",)),
    "tokens": _ShapeRule(FormatName.TOKENS, ("input_ids",), ("attention_mask", "position_ids", *TRAIN_FIELDS)),
    "openai": _ShapeRule(FormatName.MESSAGES, ("messages",), _CHAT_FIELDS, read=conversation.openai),
    "sharegpt": _ShapeRule(
        FormatName.MESSAGES, ("conversations",), ("system", *_CHAT_FIELDS), read=conversation.sharegpt
    ),
    "message_lists": _ShapeRule(
        FormatName.MESSAGES,
        ("prompt", "completion"),
        _CHAT_FIELDS,
        lists=True,
        read=conversation.prompt_and_completion,
    ),
    "alpaca_chat": _ShapeRule(
        FormatName.MESSAGES,
        ("instruction", "output"),
        ("input", "system", "history", *_CHAT_FIELDS),
        auto=False,
        read=conversation.alpaca,
    ),
}
_COMPLETION_FIELDS = ("completion", "output")


@dataclass(frozen=True, slots=True)
class SourceHead:
    """The first good records of one source."""

    name: str
    records: Sequence[Record]


def find_shape(
    heads: Sequence[SourceHead], format: FormatName, fields: Mapping[str, str], template: Path | None
) -> RecordShape | None:
    """The one shape of all sources' records.

    Args:
        heads: the first records of every source; a source without any good one has no say.
        format: what the user asked for, or ``auto``.
        fields: field to column, from ``--field``.
        template: the file of the prompt template, if any.

    Returns:
        The shape, or None where no source has a good record to tell from.

    Raises:
        Misuse: no format fits, several fit, sources differ, records are of a kind that is refused by name, or a
            field name is unknown.
    """
    source = None if template is None else prompt_completion.read_template(template)
    _check_fields(format, fields, source, str(template))
    heads = [head for head in heads if head.records]
    found: tuple[str, RecordShape] | None = None
    for head in heads:
        try:
            if source is not None:
                shape = _templated_shape(head, format, fields, source, str(template))
            else:
                shape = _detect(head, format, fields)
        except Misuse as error:
            if found is None:
                raise
            raise Misuse(f"{error} (the records of {found[0]} are {found[1].describes})") from None
        if found is not None and shape != found[1]:
            raise Misuse(
                f"{head.name}: its records are {shape.describes}, but those of {found[0]} are {found[1].describes}; "
                "pack sources of different formats in runs of their own"
            )
        found = found or (head.name, shape)
    if found is not None:
        _check_columns(heads, fields)
    return found[1] if found else None


def renderer(shape: RecordShape, chat: ChatSettings | None = None, *, columnar: bool = False) -> Renderer:
    """What renders one record of ``shape`` to text and spans.

    Args:
        shape: of the records.
        chat: how conversations are rendered, for shapes that are some.
        columnar: whether records come from a file with columns (see ``readers.UnitReader``).

    Raises:
        Misuse: a template does not compile.
    """
    read = SHAPES[shape.name].read
    if read is not None and chat is not None:
        columns = shape.columns

        def conversation_of(record: Record) -> conversation.Conversation | Refusal:
            return read({field: record[column] for field, column in columns if column in record}, columnar)

        return ChatRenderer(chat, conversation_of)
    if shape.name == "text":
        return partial(text.render, column=shape.column("text"))
    if shape.template is not None:
        make: prompt_completion.PromptMaker = _template_of(shape)
    elif shape.name == "alpaca":
        make = prompt_completion.alpaca_prompt(shape.column("instruction"), shape.column("input"))
    else:
        make = prompt_completion.column_prompt(shape.column("prompt"))
    completion = "output" if shape.name == "alpaca" else "completion"
    return partial(prompt_completion.render, make_prompt=make, completion_column=shape.column(completion))


def roles_in(heads: Iterable[SourceHead], shape: RecordShape) -> set[str]:
    """The roles of the conversations among the first records."""
    read = SHAPES[shape.name].read
    roles: set[str] = set()
    for head in heads:
        for record in head.records:
            given = {field: record[column] for field, column in shape.columns if column in record}
            found = read(given, False) if read is not None else None
            if isinstance(found, conversation.Conversation):
                roles.update(message["role"] for message in found.messages)
    return roles


def token_fields(shape: RecordShape) -> TokenFields:
    """Which columns of tokenized records hold what."""
    train = tuple((field, shape.column(field)) for field in TRAIN_FIELDS if shape.has(field))
    absent = tuple(shape.column(field) for field in TRAIN_FIELDS if not shape.has(field))
    return TokenFields(
        input_ids=shape.column("input_ids"),
        attention_mask=shape.column("attention_mask"),
        position_ids=shape.column("position_ids"),
        train=train,
        absent=absent,
    )


def columns_read(shape: RecordShape) -> frozenset[str]:
    """Every column that reading a record of ``shape`` may look at."""
    rule = SHAPES[shape.name]
    columns = {shape.column(field) for field in (*rule.required, *rule.optional)}
    if shape.format is FormatName.TOKENS:
        columns.add(SEGMENTS_COLUMN)
    if shape.template is not None:
        columns |= _template_of(shape).columns
    return frozenset(columns)


def _template_of(shape: RecordShape) -> prompt_completion.PromptTemplate:
    return prompt_completion.PromptTemplate(shape.template or "", shape.template_origin, dict(shape.columns))


def _check_fields(format: FormatName, fields: Mapping[str, str], template: str | None, origin: str) -> None:
    if template is not None:
        if format not in (FormatName.AUTO, FormatName.PROMPT_COMPLETION):
            raise Misuse(f"--prompt-template makes prompts, and --format {format} has none")
        # What the prompt is made of, the template alone says.
        known = {*_COMPLETION_FIELDS, *prompt_completion.PromptTemplate(template, origin, {}).columns}
    else:
        known = _fields_of(rule for rule in SHAPES.values() if format in (FormatName.AUTO, rule.format))
    for name in fields:
        if name not in known:
            raise Misuse(f"--field: {unknown_name(name, sorted(known))}")
    if template is None and not any(_could_be_mapped(rule, fields) for rule in SHAPES.values()):
        raise Misuse(f"--field: no one format has all of {', '.join(sorted(fields))}")


def _fields_of(rules: Iterable[_ShapeRule]) -> set[str]:
    return {name for rule in rules for name in (*rule.required, *rule.optional)}


def _check_columns(heads: Sequence[SourceHead], fields: Mapping[str, str]) -> None:
    # A field that records need not have, under a misspelt column, would be passed over without a word.
    for field, column in fields.items():
        if not any(column in record for head in heads for record in head.records):
            raise Misuse(_no_column(heads[0], field, column))


def _detect(head: SourceHead, format: FormatName, fields: Mapping[str, str]) -> RecordShape:
    if format is FormatName.AUTO:
        _refuse_by_name(head)
    rules = {
        name: rule
        for name, rule in SHAPES.items()
        if (format is rule.format or (format is FormatName.AUTO and rule.auto)) and _could_be_mapped(rule, fields)
    }
    fitting = {name: rule for name, rule in rules.items() if _fits(head, rule, fields, _is_set)}
    if not fitting:
        # Nothing but nulls where the field should be: the records are of that format, and bad.
        fitting = {name: rule for name, rule in rules.items() if _fits(head, rule, fields, _is_there)}
    if not fitting:
        raise Misuse(_nothing_fits(head, format, fields))
    if len(fitting) > 1:
        named = " and ".join(f"{rule.format} ({', '.join(rule.required)})" for rule in fitting.values())
        fields_of = " or ".join(f"--field {rule.required[0]}={rule.required[0]}" for rule in fitting.values())
        raise Misuse(
            f"{head.name}: its records fit more than one format: {named}; choose with --format, or {fields_of}"
        )
    name, rule = next(iter(fitting.items()))
    # What says which tokens train is part of the shape only where it is there or named; the rest may come and go.
    optional = [
        field
        for field in rule.optional
        if field not in TRAIN_FIELDS
        or field in fields
        or any(_is_set(record, fields, field) for record in head.records)
    ]
    shape = RecordShape(
        name, rule.format, tuple((field, fields.get(field, field)) for field in (*rule.required, *optional))
    )
    if rule.format is FormatName.TOKENS:
        _refuse_packed(head, shape)
    return shape


def _could_be_mapped(rule: _ShapeRule, fields: Mapping[str, str]) -> bool:
    # --field text=body says what the records are, whatever other columns they have.
    return all(name in (*rule.required, *rule.optional) for name in fields)


def _fits(
    head: SourceHead, rule: _ShapeRule, fields: Mapping[str, str], has: Callable[[Record, Mapping[str, str], str], bool]
) -> bool:
    for record in head.records:
        if all(has(record, fields, field) for field in rule.required):
            chat = any(_is_conversation(record.get(fields.get(field, field))) for field in rule.required)
            if (chat or not rule.lists) and not (chat and rule.strings):
                return True
    return False


def _is_conversation(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(entry, dict) for entry in value)


def _is_set(record: Record, fields: Mapping[str, str], field: str) -> bool:
    return record.get(fields.get(field, field)) is not None


def _is_there(record: Record, fields: Mapping[str, str], field: str) -> bool:
    return fields.get(field, field) in record


def _templated_shape(
    head: SourceHead, format: FormatName, fields: Mapping[str, str], source: str, origin: str
) -> RecordShape:
    if format is FormatName.AUTO:
        _refuse_by_name(head)
    completions = [name for name in _COMPLETION_FIELDS if name in fields]
    if not completions:
        completions = [
            name for name in _COMPLETION_FIELDS if any(_is_there(record, fields, name) for record in head.records)
        ]
    if len(completions) > 1:
        raise Misuse(f"{head.name}: has both a completion and an output; choose with --field completion=COLUMN")
    if not completions:
        raise Misuse(
            f"{head.name}: has no column completion or output (has {_columns(head)}); "
            "name it with --field completion=COLUMN"
        )
    for field, column in fields.items():
        if field in completions and not any(column in record for record in head.records):
            raise Misuse(_no_column(head, field, column))
    completion = fields.get(completions[0], completions[0])
    if any(_is_conversation(record.get(completion)) for record in head.records):
        raise Misuse(f"{head.name}: its completions are lists of messages; --prompt-template takes strings")
    name = "alpaca" if completions[0] == "output" else "prompt_completion"
    columns = {**fields, completions[0]: completion}
    return RecordShape(name, FormatName.PROMPT_COMPLETION, tuple(sorted(columns.items())), source, origin)


def _refuse_by_name(head: SourceHead) -> None:
    for record in head.records:
        if "chosen" in record and "rejected" in record:
            raise Misuse(
                f"{head.name}: its records are preference pairs (chosen, rejected); packing would train on both. "
                "Pack one side with --format and --field"
            )
        for column, value in record.items():
            if _is_image(column, value):
                raise Misuse(
                    f"{head.name}: its records hold images ({_safe(column)}); packtool packs text only. "
                    "Pack their text alone with --format"
                )


def _is_image(column: str, value: Any) -> bool:
    if isinstance(value, dict) and value.keys() == {"bytes", "path"}:
        return True  # how `datasets` stores an image or a sound, whatever the column is called
    if column not in _IMAGE_COLUMNS or value is None:
        return False
    return len(value) > 0 if isinstance(value, Sized) else not isinstance(value, int | float)


def _refuse_packed(head: SourceHead, shape: RecordShape) -> None:
    fields = token_fields(shape)
    for record in head.records:
        packed = None
        if record.get(SEGMENTS_COLUMN) is not None:
            packed = f"it has {SEGMENTS_COLUMN}"
        elif restarts(record, fields):
            packed = f"its {fields.position_ids} start anew inside a row"
        if packed:
            raise Misuse(f"{head.name}: is packed already ({packed}); give the documents it was made from")


def _nothing_fits(head: SourceHead, format: FormatName, fields: Mapping[str, str]) -> str:
    columns = {column for record in head.records for column in record}
    for field, column in fields.items():
        if column not in columns:
            return _no_column(head, field, column)
    chat = [fields.get(field, field) for field in SHAPES["prompt_completion"].required]
    if any(_is_conversation(record.get(column)) for record in head.records for column in chat):
        return f"{head.name}: its prompts or completions ({', '.join(chat)}) are lists of messages: --format messages"
    wanted = "no format fits" if format is FormatName.AUTO else f"--format {format} does not fit"
    rules = [rule for rule in SHAPES.values() if format in (FormatName.AUTO, rule.format)]
    needs = ", or ".join(sorted({" + ".join(rule.required) for rule in rules}))
    return f"{head.name}: {wanted} its columns ({_columns(head)}); needed: {needs}; map them with --field NAME=COLUMN"


def _no_column(head: SourceHead, field: str, column: str) -> str:
    parent, dot, _ = column.partition(".")
    if dot and any(parent in record for record in head.records):
        return f"{head.name}: --field {field}={column} names a nested column; only top-level columns can be used"
    columns = {name for record in head.records for name in record}
    near = difflib.get_close_matches(column, columns, n=1)
    hint = f"did you mean {near[0]!r}? It" if near else "it"
    return f"{head.name}: has no column {column!r} for --field {field}; {hint} has {_columns(head)}"


def _columns(head: SourceHead) -> str:
    names = list(dict.fromkeys(column for record in head.records for column in record))
    shown = ", ".join(_safe(name) for name in names[:8])
    return (shown or "none") + (", ..." if len(names) > 8 else "")


def _safe(name: str) -> str:
    """A column's name for a message, not endless."""
    return printable(name)[:40]
