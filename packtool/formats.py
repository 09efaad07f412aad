"""Which format a run's records have, found from the first records of every source, and what reads one of them.

Takes parsed records; knows nothing of files. A new format is one entry in ``SHAPES``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from packtool.config import FormatName, unknown_name
from packtool.errors import Misuse
from packtool.rendering import Renderer, prompt_completion, text
from packtool.tokenized import TRAIN_FIELDS, TokenFields, restarts

HEAD_RECORDS = 100
"""Records of every source that the format is found from."""

Record = Mapping[str, Any]
_PACKED_COLUMNS = ("seq_lengths", "position_ids")


@dataclass(frozen=True, slots=True)
class RecordShape:
    """What every record of a run looks like; small, and sent to the workers."""

    name: str
    """The entry of ``SHAPES``."""
    format: FormatName
    columns: tuple[tuple[str, str], ...]
    """(field, column) of every field the records have."""
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
        """For messages: the format and its columns."""
        return f"{self.format} ({', '.join(column for _, column in self.columns)})"


@dataclass(frozen=True, slots=True)
class _ShapeRule:
    format: FormatName
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    strings: bool = False
    """Whether the required fields must not be lists: lists there make it a conversation."""


SHAPES: Mapping[str, _ShapeRule] = {
    "text": _ShapeRule(FormatName.TEXT, ("text",)),
    "prompt_completion": _ShapeRule(FormatName.PROMPT_COMPLETION, ("prompt", "completion"), strings=True),
    "alpaca": _ShapeRule(FormatName.PROMPT_COMPLETION, ("instruction", "output"), ("input",)),
    "tokens": _ShapeRule(FormatName.TOKENS, ("input_ids",), ("attention_mask", "position_ids", *TRAIN_FIELDS)),
    "openai": _ShapeRule(FormatName.MESSAGES, ("messages",)),
    "sharegpt": _ShapeRule(FormatName.MESSAGES, ("conversations",)),
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
    found: tuple[str, RecordShape] | None = None
    for head in heads:
        if not head.records:
            continue
        if source is not None:
            shape = _templated_shape(head, format, fields, source, str(template))
        else:
            shape = _detect(head, format, fields)
        if found is not None and shape != found[1]:
            raise Misuse(
                f"{head.name}: its records are {shape.describes}, but those of {found[0]} are {found[1].describes}; "
                "pack sources of different formats in runs of their own"
            )
        found = found or (head.name, shape)
    return found[1] if found else None


def renderer(shape: RecordShape) -> Renderer:
    """What renders one record of ``shape`` to text and spans.

    Raises:
        Misuse: the prompt template does not compile.
    """
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
    if shape.template is not None:
        columns |= _template_of(shape).columns
    return frozenset(columns)


def _template_of(shape: RecordShape) -> prompt_completion.PromptTemplate:
    return prompt_completion.PromptTemplate(shape.template or "", shape.template_origin, dict(shape.columns))


def _check_fields(format: FormatName, fields: Mapping[str, str], template: str | None, origin: str) -> None:
    known = {name for rule in SHAPES.values() for name in (*rule.required, *rule.optional)}
    if template is not None:
        columns = prompt_completion.PromptTemplate(template, origin, {}).columns
        known |= columns
        if format not in (FormatName.AUTO, FormatName.PROMPT_COMPLETION):
            raise Misuse(f"--prompt-template makes prompts, and --format {format} has none")
    elif format is not FormatName.AUTO:
        rules = [rule for rule in SHAPES.values() if rule.format is format]
        known = {name for rule in rules for name in (*rule.required, *rule.optional)}
    for name in fields:
        if name not in known:
            raise Misuse(f"--field: {unknown_name(name, sorted(known))}")


def _detect(head: SourceHead, format: FormatName, fields: Mapping[str, str]) -> RecordShape:
    if format is FormatName.AUTO:
        _refuse_by_name(head)
    rules = {
        name: rule
        for name, rule in SHAPES.items()
        if format in (FormatName.AUTO, rule.format) and _could_be_mapped(rule, fields)
    }
    fitting = {name: rule for name, rule in rules.items() if _fits(head, rule, fields, _is_set)}
    if not fitting:
        # Nothing but nulls where the field should be: the records are of that format, and bad.
        fitting = {name: rule for name, rule in rules.items() if _fits(head, rule, fields, _is_there)}
    if not fitting:
        raise Misuse(_nothing_fits(head, format, fields))
    if len(fitting) > 1:
        named = " and ".join(f"{rule.format} ({', '.join(rule.required)})" for rule in fitting.values())
        raise Misuse(f"{head.name}: its records fit more than one format: {named}; choose with --format or --field")
    name, rule = next(iter(fitting.items()))
    if rule.format is FormatName.MESSAGES:
        columns = ", ".join(fields.get(field, field) for field in rule.required)
        raise Misuse(f"{head.name}: its records are conversations ({columns}); chat is not supported yet")
    optional = [field for field in rule.optional if any(_is_set(record, fields, field) for record in head.records)]
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
            lists = any(isinstance(record.get(fields.get(field, field)), list) for field in rule.required)
            if not (rule.strings and lists):
                return True
    return False


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
    name = "alpaca" if completions[0] == "output" else "prompt_completion"
    columns = {completions[0]: fields.get(completions[0], completions[0]), **fields}
    return RecordShape(name, FormatName.PROMPT_COMPLETION, tuple(sorted(columns.items())), source, origin)


def _refuse_by_name(head: SourceHead) -> None:
    for record in head.records:
        if "chosen" in record and "rejected" in record:
            raise Misuse(
                f"{head.name}: its records are preference pairs (chosen, rejected); packing would train on both. "
                "Pack one side with --format and --field"
            )
        for column in ("image", "images", "pixel_values"):
            if record.get(column) is not None and not isinstance(record[column], str | int | float):
                raise Misuse(f"{head.name}: its records hold images ({column}); packtool packs tokens of text only")


def _refuse_packed(head: SourceHead, shape: RecordShape) -> None:
    for record in head.records:
        if record.get("seq_lengths") is not None:
            raise Misuse(f"{head.name}: is packed already (it has seq_lengths); give the documents it was made from")
        if restarts(record, shape.column("position_ids")):
            raise Misuse(f"{head.name}: is packed already (position_ids restart); give the documents it was made from")


def _nothing_fits(head: SourceHead, format: FormatName, fields: Mapping[str, str]) -> str:
    columns = {column for record in head.records for column in record}
    for field, column in fields.items():
        if column not in columns:
            parent, dot, _ = column.partition(".")
            if dot and parent in columns:
                return (
                    f"{head.name}: --field {field}={column} names a nested column; only top-level columns can be used"
                )
            return f"{head.name}: has no column {column!r} for --field {field}; it has {_columns(head)}"
    lists = [c for c in ("prompt", "completion") if any(isinstance(r.get(c), list) for r in head.records)]
    if lists:
        return f"{head.name}: its prompts or completions are message lists; chat is not supported yet"
    wanted = "no format" if format is FormatName.AUTO else f"--format {format} does not"
    verb = "fits" if format is FormatName.AUTO else "fit"
    rules = [rule for rule in SHAPES.values() if format in (FormatName.AUTO, rule.format)]
    needs = ", or ".join(sorted({" + ".join(rule.required) for rule in rules}))
    return (
        f"{head.name}: {wanted} {verb} its columns ({_columns(head)}); needed: {needs}; "
        "map them with --field NAME=COLUMN"
    )


def _columns(head: SourceHead) -> str:
    names = list(dict.fromkeys(column for record in head.records for column in record))
    shown = ", ".join(repr(name)[1:-1][:40] for name in names[:8])
    return (shown or "none") + (", ..." if len(names) > 8 else "")
