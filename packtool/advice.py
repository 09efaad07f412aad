"""One sentence of advice from the outcomes of several strategies and lengths: structure first, then efficiency.

Knows outcomes and the kind of records, nothing of how either came to be.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from packtool.amounts import tenths
from packtool.config import FormatName
from packtool.outcome import Outcome

_WHOLE_SHARE = 0.001
"""Outcomes that harm no more than this share of documents (or tokens) beyond the least harm are as good."""
_CUT_SHARE = 0.01
"""The same where a cut is no harm to what trains, only to what is seen together."""
_FILL = 0.005

_NAMES = {
    FormatName.TEXT: "documents",
    FormatName.MESSAGES: "conversations",
    FormatName.PROMPT_COMPLETION: "examples",
    FormatName.TOKENS: "documents",
}


@dataclass(frozen=True, slots=True)
class Advice:
    """What to pack with, and why."""

    strategy: str
    max_length: int
    text: str


def advise(
    outcomes: Sequence[Outcome], format: FormatName, default: str, *, chooses_tokens: bool, sampled: bool = False
) -> Advice:
    """The outcome to choose: the least harm to documents, then the best fill, then the shortest packs.

    Args:
        outcomes: at least one that is not refused.
        format: of the records.
        default: the strategy that ``pack`` would take by itself, which wins among equals.
        chooses_tokens: whether only a part of a document trains (an answer behind its prompt), so that a piece cut off
            from the rest trains on what it cannot know.
        sampled: whether the outcomes are estimates.
    """
    usable = [outcome for outcome in outcomes if not outcome.refused]
    if chooses_tokens:
        kept = [outcome for outcome in usable if outcome.overlong != "split"] or usable
        kept = _about_least(kept, _harmed_share, _WHOLE_SHARE)
    else:
        kept = _about_least(usable, _lost_share, _WHOLE_SHARE)
        kept = _about_least(kept, _cut_share, _CUT_SHARE)
    kept = _about_least(kept, lambda outcome: -outcome.fill, _FILL)
    chosen = min(kept, key=lambda each: (each.max_length, each.strategy != default, each.packs))
    reason = _reason(chosen, usable, _NAMES[format], chooses_tokens=chooses_tokens)
    flags = f"--strategy {chosen.strategy} --max-length {chosen.max_length}"
    return Advice(chosen.strategy, chosen.max_length, f"{flags}: {'by the sample ' if sampled else ''}{reason}")


def _about_least(outcomes: list[Outcome], measure: Callable[[Outcome], float], tolerance: float) -> list[Outcome]:
    least = min(measure(outcome) for outcome in outcomes)
    return [outcome for outcome in outcomes if measure(outcome) <= least + tolerance]


def _harmed_share(outcome: Outcome) -> float:
    return (outcome.documents_cut + outcome.documents_left_out) / (outcome.documents + outcome.documents_left_out)


def _lost_share(outcome: Outcome) -> float:
    return outcome.tokens_lost / (outcome.tokens + outcome.tokens_lost)


def _cut_share(outcome: Outcome) -> float:
    return outcome.documents_cut / outcome.documents


def _reason(chosen: Outcome, usable: Sequence[Outcome], name: str, *, chooses_tokens: bool) -> str:
    reasons = [_structure(chosen, name, chooses_tokens=chooses_tokens)]
    rest = f"packs are {tenths(chosen.fill)} % full"
    if chosen.only_halves:
        rest += ", since most hold a piece of more than half of one, beside which little fits"
    reasons.append(rest)
    if chooses_tokens and chosen.overlong == "split":
        reasons.append("though answers cut off from their prompts train worse")
    longer = max(outcome.max_length for outcome in usable)
    if chooses_tokens and _harmed_share(chosen) > 10 * _WHOLE_SHARE and chosen.max_length == longer:
        reasons.append("and a larger --max-length would keep more")
    return ", ".join(reasons)


def _structure(chosen: Outcome, name: str, *, chooses_tokens: bool) -> str:
    cut, out = chosen.documents_cut, chosen.documents_left_out
    if not cut and not out:
        return f"every one of the {chosen.documents:,} {name} stays whole"
    told = [f"{cut:,} cut"] * bool(cut) + [f"{out:,} left out"] * bool(out)
    everything = chosen.documents + out
    kept = f"{tenths((chosen.documents - cut) / everything)} % of the {everything:,} {name} stay whole"
    if chooses_tokens:
        return f"{kept} ({' and '.join(told)}, the fewest here)"
    lost = f"{chosen.tokens_lost:,} tokens are lost" if chosen.tokens_lost else "no token is lost"
    return f"{kept} ({' and '.join(told)}), {lost}"
