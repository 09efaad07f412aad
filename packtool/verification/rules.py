"""What the manifest says about how a dataset was made, as rules to hold it to; checks that it agrees with itself.

Looks at the manifest alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from packtool.config import INT32_MAX, FormatName
from packtool.job import CHAT_OPTIONS
from packtool.manifest import MANIFEST_NAME, Manifest
from packtool.packing import STRATEGIES
from packtool.planning import PlanRules
from packtool.sources import Compression, Kind, compression_of
from packtool.tokenized import TRAIN_FIELDS
from packtool.verification.report import Finding


@dataclass(frozen=True, slots=True)
class TextRules:
    """What every document of a format holds."""

    all_trains: bool
    """Every token but the first of a segment."""
    bos_ids: tuple[int, ...]
    eos_id: int | None
    """The last token of every document; None where nothing is put there."""


def text_rules(manifest: Manifest) -> TextRules:
    """The rules that follow from the format of the records."""
    entry = manifest.tokenizer
    fields = manifest.options.get("field")
    tokens_alone = (
        manifest.format == FormatName.TOKENS and isinstance(fields, dict) and not set(TRAIN_FIELDS) & set(fields)
    )
    return TextRules(
        all_trains=manifest.format == FormatName.TEXT or tokens_alone, bos_ids=entry.bos_ids, eos_id=entry.eos_id
    )


def plan_rules(finding: Finding, manifest: Manifest) -> PlanRules | None:
    """Check the manifest's options; the rules in them, or None where they are not complete.

    Which options there are follows from the manifest's ``format_version``, whatever version of packtool it names.
    """
    options = manifest.options
    expected = dict(_OPTIONS)
    if manifest.format == FormatName.MESSAGES:
        expected |= zip(CHAT_OPTIONS, _CHAT_VALUES, strict=True)
    complete = True
    for name, (fits, what) in expected.items():
        finding.checked += 1
        if name not in options:
            complete = False
            finding.fault(f"{MANIFEST_NAME}: options.{name} is missing")
        elif not fits(options[name]):
            complete = False
            finding.fault(f"{MANIFEST_NAME}: options.{name} is {options[name]!r:.60}; expected {what}")
    for name in sorted(options.keys() - expected.keys()):
        finding.fault(f"{MANIFEST_NAME}: options.{name:.60} is no option of such a dataset")
    _check_agreement(finding, manifest)
    if not complete:
        return None
    strategy = STRATEGIES[manifest.strategy]
    overlong = next((policy for policy in strategy.overlong if policy == options["overlong"]), None)
    if overlong is None:
        told = f"options.overlong is {options['overlong']!r:.60}, which {strategy.name} does not take"
        finding.fault(f"{MANIFEST_NAME}: {told}")
        return None
    rules = PlanRules(
        strategy=strategy,
        max_length=manifest.max_length,
        overlong=overlong,
        shuffle=options["shuffle"],
        seed=options["seed"],
        max_segments=options["max_segments"],
        group_tokens=options["group_tokens"],
    )
    if rules.shuffle and not strategy.shuffles:
        finding.fault(f"{MANIFEST_NAME}: options.shuffle is true, but {strategy.name} keeps the order")
    return rules


def _check_agreement(finding: Finding, manifest: Manifest) -> None:
    def demand(holds: bool, told: str) -> None:
        finding.checked += 1
        if not holds:
            finding.fault(f"{MANIFEST_NAME}: {told}")

    limit = manifest.options.get("limit")
    demand("limit" not in manifest.options or manifest.limited == (limit is not None), "limited is not options.limit")
    demand(
        not isinstance(limit, int) or manifest.records <= limit, f"{manifest.records} records, over the limit {limit}"
    )
    shards, shard_tokens = manifest.options.get("shards"), manifest.options.get("shard_tokens")
    demand(
        shards is None or shards == len(manifest.shards),
        f"options.shards is {shards!r:.60}, and there are {len(manifest.shards)}",
    )
    demand(shards is None or shard_tokens is None, "options.shards and options.shard_tokens are both given")
    told = manifest.versions.get("packtool", manifest.packtool_version)
    demand(told == manifest.packtool_version, f"packtool_version is not versions.packtool, {told!r:.60}")
    templated = manifest.template_digest is not None
    demand(
        templated or manifest.format != FormatName.MESSAGES,
        "template_digest is missing, but records are conversations",
    )
    demand(
        not templated or manifest.format in (FormatName.MESSAGES, FormatName.PROMPT_COMPLETION),
        f"there is a template_digest, but records are {manifest.format}",
    )
    demand(not manifest.padded or manifest.tokenizer.pad_id is not None, "it is padded, but no pad_id is given")
    # A group of a stream may have had no pack but some that train nothing.
    most = None if STRATEGIES[manifest.strategy].keeps_untrained else manifest.packs
    demand(
        manifest.groups >= 1 and (most is None or manifest.groups <= most),
        f"groups is {manifest.groups}, of {manifest.packs} packs",
    )
    for source in manifest.sources:
        where = f"source {source.name!r:.80}"
        demand(source.kind in set(Kind), f"{where} is of kind {source.kind!r:.60}, which is none")
        expected = compression_of(source.name) if source.kind in (Kind.LINES, Kind.ARRAY) else Compression.NONE
        demand(
            source.compression == expected,
            f"{where} of kind {source.kind!r:.60}: compression is {source.compression!r:.60}; expected {expected}",
        )
        counts = f"{source.rows} rows, {source.records} records and {source.documents} documents"
        demand(source.documents <= source.records <= source.rows, f"{where} has {counts}")
        # Only lines may be blank.
        demand(
            source.kind == Kind.LINES or source.records == source.rows,
            f"{where} has {counts}; every row of a file of kind {source.kind:.60} is a record",
        )


def _is_int(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and low <= value <= high


def _or_none(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or fits(value)


def _is(kind: type) -> Callable[[Any], bool]:
    return lambda value: type(value) is kind


def _is_columns(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(column, str) for column in value.values())


_BIG = 2**63 - 1
_OPTIONS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_length": (_is_int(2, INT32_MAX), "a whole number"),
    "strategy": (_is(str), "a strategy"),
    "overlong": (_is(str), "a policy"),
    "format": (_is(str), "a format"),
    "field": (_is_columns, "names of fields and columns"),
    "shuffle": (_is(bool), "true or false"),
    "seed": (_is_int(0, 2**64 - 1), "a number of 64 bits"),
    "pad": (_is(bool), "true or false"),
    "max_segments": (_or_none(_is_int(1, INT32_MAX)), "a number of at least 1, or null"),
    "limit": (_or_none(_is_int(1, _BIG)), "a number of at least 1, or null"),
    "group_tokens": (_is_int(1, _BIG), "a number of at least 1"),
    "shard_tokens": (_or_none(_is_int(1, _BIG)), "a number of at least 1, or null"),
    "shards": (_or_none(_is_int(1, _BIG)), "a number of at least 1, or null"),
    "max_record_bytes": (_is_int(1, _BIG), "a number of at least 1"),
}
"""The options that every dataset of this format version has, and what each must be."""
_CHAT_VALUES: tuple[tuple[Callable[[Any], bool], str], ...] = (
    (lambda value: isinstance(value, list) and all(isinstance(role, str) for role in value), "roles"),
    (_is(bool), "true or false"),
    (_is(dict), "variables of the template"),
    (_or_none(_is(str)), "a date, or null"),
)
"""The same for conversations, in the order of ``CHAT_OPTIONS``."""
