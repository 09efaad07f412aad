"""A job: all that is settled before the first record is packed. Options in; sources, format, tokenizer, rules out.

Whatever can be misuse is found here, before anything is written.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from importlib.metadata import version
from typing import Any

from tokenizers import Tokenizer

from packtool import __version__
from packtool.config import EncoderName, FormatName, OnBadRecord, Overlong, PackConfig, SharedOptions, StrategyName
from packtool.encoders.fast import FastEncoder, Unfit
from packtool.encoders.reference import hand_on
from packtool.errors import BadData, Misuse, Refusal, bad_record_message, printable
from packtool.formats import HEAD_RECORDS, RecordShape, SourceHead, find_shape, renderer, roles_in
from packtool.packing import STRATEGIES
from packtool.packing import Overlong as PackingOverlong
from packtool.planning import PlanRules
from packtool.readers import head
from packtool.rendering.chat import NO_DATE, ChatSettings
from packtool.sources import FoundSources, Source, find_sources, shown
from packtool.tokenizer import (
    SpecialTokens,
    TokenizerFiles,
    chat_templates,
    find_tokenizer,
    load,
    settle_special_tokens,
    special_token_texts,
    vocabulary_size,
)
from packtool.tokenizing import Recipe

CHAT_OPTIONS = ("train_on", "end_of_turn", "template_arg", "template_date")
"""The options that only conversations have, as the manifest names them."""


@dataclass(frozen=True, slots=True)
class Job:
    """A run, settled."""

    config: PackConfig
    found: FoundSources
    shape: RecordShape
    tokenizer: TokenizerFiles
    special: SpecialTokens
    recipe: Recipe
    rules: PlanRules
    warnings: tuple[str, ...]
    """What may not be as the user thinks, one line each."""

    @property
    def sources(self) -> tuple[Source, ...]:
        """In the order of the doc ids."""
        return self.found.sources

    @property
    def template_digest(self) -> str | None:
        """The sha256 of the source of what renders prompts or chats."""
        if self.recipe.chat is not None:
            return chat_template_digest(self.recipe.chat.templates)
        return None if self.shape.template is None else prompt_template_digest(self.shape.template)

    @property
    def options(self) -> dict[str, Any]:
        """Every option that shapes the data, as resolved; the manifest's ``options``."""
        config, rules = self.config, self.rules
        return {
            "max_length": rules.max_length,
            "strategy": rules.strategy.name,
            "overlong": str(rules.overlong),
            "format": str(self.shape.format),
            "field": dict(sorted(self.shape.columns)),
            "shuffle": rules.shuffle,
            "seed": rules.seed,
            "pad": config.pad,
            "max_segments": rules.max_segments,
            "limit": config.limit,
            "group_tokens": rules.tokens_a_group,
            "shard_tokens": config.shard_tokens,
            "shards": config.shards,
            "max_record_bytes": config.max_record_bytes,
            **self._chat_options,
        }

    @property
    def _chat_options(self) -> dict[str, Any]:
        chat = self.recipe.chat
        if chat is None:
            return {}
        shown_date = chat.date if chat.uses_date else None
        values = (list(chat.train_on), chat.end_of_turn, self.config.template_arg, shown_date)
        return dict(zip(CHAT_OPTIONS, values, strict=True))

    @property
    def command(self) -> dict[str, Any]:
        """What makes two runs the same command, but for the content of the sources."""
        special = self.special
        return {
            "options": self.options,
            "sources": [source.name for source in self.sources],
            "tokenizer": {
                "digest": self.recipe.tokenizer_digest,
                "bos_ids": list(special.bos_ids),
                "eos_id": special.eos.id,
                "pad_id": special.pad.id if self.config.pad else None,
            },
            "template": self.template_digest,
            "versions": versions(),
        }


_MOST_PADDED = 1 << 24
"""Tokens in a pack with padding: half a gigabyte of memory for one."""


def chat_template_digest(templates: Sequence[tuple[str, str]]) -> str:
    """The sha256 of chat templates, as ``chat_templates`` gives them."""
    return prompt_template_digest(json.dumps(templates))


def prompt_template_digest(source: str) -> str:
    """The sha256 of the source of a prompt template."""
    return hashlib.sha256(source.encode()).hexdigest()


def versions() -> dict[str, str]:
    """Versions of everything the bytes of a dataset depend on."""
    libraries = {name: version(name) for name in ("pyarrow", "tokenizers", "jinja2")}
    return {"packtool": __version__, **libraries}


def settle(config: PackConfig, recorded: Mapping[str, Any]) -> Job:
    """Settle a job.

    Args:
        config: what was asked for.
        recorded: the options of the run that the output folder has, if it has one; where a date is the default,
            that run's stays.

    Raises:
        Misuse: options that do not fit the data or one another, missing sources, tokenizer trouble.
        BadData: a source is damaged, or no record of any source can be read.
    """
    if config.strategy is not None:
        check_strategy(config, config.strategy)  # this needs no data, so it is said before any is read
    if config.cache_dir is not None and config.cache_dir.exists() and not config.cache_dir.is_dir():
        raise Misuse(f"--cache-dir {config.cache_dir}: not a folder; give one, or a name that is free")
    if config.max_bad_records is not None and config.on_bad_record is OnBadRecord.ERROR:
        raise Misuse("--max-bad-records is for bad records that are passed over; give --on-bad-record skip, too")
    if config.pad and config.max_length > _MOST_PADDED:
        raise Misuse(
            f"--pad with --max-length {config.max_length:,}: every pack would be that long, at 30 bytes of memory a "
            f"token while it is written; pad to {_MOST_PADDED:,} at most, or pack without --pad"
        )
    tokenizer = find_tokenizer(config.tokenizer)
    found = find_sources(config.sources)
    if not found.sources:
        raise BadData("nothing to pack: " + "; ".join(found.warnings or ("no source holds data",)))
    heads, shape = _shape(config, found.sources)
    digest = tokenizer.digest
    loaded = load(tokenizer)
    _refuse_chat_options(config, shape)
    chat = None
    if shape.format is FormatName.MESSAGES:
        chat = _chat(config, tokenizer, loaded, recorded.get("template_date"))
    if shape.format is not FormatName.TOKENS:
        renderer(shape, chat)  # a template that does not compile is misuse
    special = settle_special_tokens(
        tokenizer,
        loaded,
        adds_tokens=shape.format in (FormatName.TEXT, FormatName.PROMPT_COMPLETION),
        bos=config.bos,
        eos=config.eos,
        eos_token=config.eos_token,
        pad_token=config.pad_token,
    )
    if config.encoder is EncoderName.FASTOKENS and shape.format is not FormatName.TOKENS:
        _refuse_unfit(tokenizer)
    if config.pad and special.pad.id is None:
        raise Misuse("--pad: the tokenizer has neither a pad token nor EOS; give --pad-token TOKEN")
    recipe = Recipe(
        tokenizer=tokenizer,
        tokenizer_digest=digest,
        vocabulary_size=vocabulary_size(loaded),
        bos_ids=special.bos_ids,
        eos_id=special.eos.id,
        shape=shape,
        max_record_bytes=config.max_record_bytes,
        chat=chat,
    )
    warnings = (*found.warnings, *_warnings(config, heads, shape))
    if shape.format is not FormatName.TOKENS:
        hand_on(digest, loaded)
    return Job(config, found, shape, tokenizer, special, recipe, plan_rules(config, shape), warnings)


def default_strategy(shape: RecordShape) -> StrategyName:
    """What packs such records where nobody says how: documents of which only a part trains stay whole."""
    return StrategyName.BFD if shape.chooses_tokens else StrategyName.BFD_SPLIT


def plan_rules(config: PackConfig, shape: RecordShape) -> PlanRules:
    """How to plan documents of such records.

    Raises:
        Misuse: options that do not go with the strategy.
    """
    strategy = STRATEGIES[config.strategy or default_strategy(shape)]
    return PlanRules(
        strategy=strategy,
        max_length=config.max_length,
        overlong=_overlong(config, strategy.name),
        shuffle=_shuffle(config, strategy.name),
        seed=config.seed,
        max_segments=config.max_segments,
        group_tokens=config.group_tokens,
    )


def check_strategy(config: SharedOptions, strategy: StrategyName) -> None:
    """Refuse options that do not go with a strategy.

    Raises:
        Misuse: the message names what does.
    """
    _overlong(config, strategy)
    _shuffle(config, strategy)


def _warnings(config: PackConfig, heads: Sequence[SourceHead], shape: RecordShape) -> Iterator[str]:
    if shape.format is FormatName.MESSAGES and not {"last", "all"} & set(config.train_on):
        roles = roles_in(heads, shape)
        for role in config.train_on:
            if roles and role not in roles:
                known = ", ".join(map(printable, sorted(roles)))
                yield f"--train-on {printable(role)}: no message of the first records has that role (they have {known})"
    if shape.name == "alpaca":
        unused = [
            name for name in ("system", "history") if any(record.get(name) for h in heads for record in h.records)
        ]
        if unused:
            yield f"the columns {' and '.join(unused)} are not used; --format messages uses them"


def _refuse_unfit(tokenizer: TokenizerFiles) -> None:
    try:
        FastEncoder(tokenizer)
    except Unfit as error:
        raise Misuse(f"--encoder fastokens: {error}; leave the choice to --encoder auto") from None


def _refuse_chat_options(config: PackConfig, shape: RecordShape) -> None:
    if shape.format is FormatName.MESSAGES:
        return
    for name in ("chat_template", *CHAT_OPTIONS):
        if name in config.model_fields_set:
            raise Misuse(f"--{name.replace('_', '-')} is for conversations; the records are {shape.describes}")
    if config.overlong is Overlong.TRUNCATE_TURNS:
        raise Misuse(f"--overlong truncate_turns is for conversations; the records are {shape.describes}")


def _chat(config: PackConfig, files: TokenizerFiles, tokenizer: Tokenizer, recorded_date: str | None) -> ChatSettings:
    templates, origin = chat_templates(files, config.chat_template)
    named, special = special_token_texts(files, tokenizer)
    today = recorded_date or date.today().isoformat()
    settings = ChatSettings(
        templates=templates,
        origin=origin,
        date=config.template_date.isoformat() if config.template_date else today,
        variables=json.dumps({**dict(named), **config.template_arg}, sort_keys=True),
        special_tokens=tuple(special),
        train_on=config.train_on,
        end_of_turn=config.end_of_turn,
    )
    # A date that no template prints must not make two runs differ.
    return settings if settings.uses_date else replace(settings, date=NO_DATE)


def _overlong(config: SharedOptions, strategy: str) -> PackingOverlong:
    asked, allowed = config.overlong, STRATEGIES[strategy]
    policy = allowed.takes(asked)
    if policy is None:
        others = " or ".join(name for name, other in STRATEGIES.items() if other.takes(asked))
        raise Misuse(
            f"--overlong {asked} does not go with --strategy {strategy} (it takes {', '.join(allowed.overlong)}); "
            f"for {asked} use --strategy {others}"
        )
    return policy


def _shuffle(config: SharedOptions, strategy: str) -> bool:
    if STRATEGIES[strategy].shuffles:
        return config.shuffle is not False
    if config.shuffle:
        raise Misuse(f"--shuffle does not go with --strategy {strategy}, which keeps the order")
    return False


def _shape(config: PackConfig, sources: tuple[Source, ...]) -> tuple[list[SourceHead], RecordShape]:
    heads: list[SourceHead] = []
    first_bad: tuple[str, int, Refusal] | None = None
    for source in sources:
        name, good = shown(source.path), []
        for row, record in head(source, HEAD_RECORDS, max_record_bytes=config.max_record_bytes):
            if isinstance(record, Refusal):
                first_bad = first_bad or (name, row, record)
            else:
                good.append(record)
        heads.append(SourceHead(name, good))
    shape = find_shape(heads, config.format, config.field, config.prompt_template)
    if shape is not None:
        return heads, shape
    if first_bad is None:
        raise BadData("nothing to pack: " + "; ".join(f"{head.name} holds no records" for head in heads[:3]))
    name, row, refusal = first_bad
    if config.on_bad_record is OnBadRecord.ERROR:
        raise BadData(bad_record_message(name, row, refusal.reason, refusal.detail))
    raise BadData(
        f"{name}:{row + 1}: none of the first records of any source can be read, so what they hold cannot be told "
        f"({refusal.reason}: {refusal.detail}); mend them or put a good one first"
    )


def difference(now: dict[str, Any], then: dict[str, Any]) -> list[str]:
    """What differs between two commands, for people: ``max_length 2048, not 4096``; what is given first leads."""
    told: list[str] = []
    for key in ("sources", "options", "template", "tokenizer", "versions"):
        if key in ("sources", "template"):
            if now.get(key) != then.get(key):
                told.append(f"{key} {_short(now.get(key))}, not {_short(then.get(key))}")
            continue
        ours, theirs = now.get(key, {}), then.get(key, {})
        for name in [*ours, *(name for name in theirs if name not in ours)]:
            if ours.get(name) != theirs.get(name):
                label = name if key == "options" else f"{key} {name}"
                told.append(f"{label} {_short(ours.get(name))}, not {_short(theirs.get(name))}")
    return told if len(told) <= _MOST_TOLD else [*told[:_MOST_TOLD], f"and {len(told) - _MOST_TOLD} more"]


_MOST_TOLD = 3
"""Differences; who changed more knows already that it is another command."""


def _short(value: Any) -> str:
    if isinstance(value, dict):
        value = [f"{name}={each}" for name, each in value.items()]
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value == []:
        return "none"
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 40 else text[:36] + "..."
