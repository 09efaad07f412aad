"""The advice: the least harm to documents first, then the best fill, then the shortest packs."""

from dataclasses import replace

import pytest

from packtool.advice import Advice, advise
from packtool.config import FormatName
from packtool.outcome import Outcome
from packtool.statistics import SegmentsPerPack

SPLITTING = ("bfd_split", "wrapped")


def outcome(strategy: str, max_length: int, *, fill: float, cut: int = 0, out: int = 0, lost: int = 0) -> Outcome:
    return Outcome(
        strategy=strategy,
        max_length=max_length,
        overlong="split" if strategy in SPLITTING else "drop",
        refused="",
        packs=round(100_000 / fill),
        lower_bound_packs=1,
        fill=fill,
        documents=10_000 - out,
        documents_cut=cut,
        documents_left_out=out,
        tokens=1_000_000 - lost,
        tokens_lost=lost,
        segments=10_000,
        segments_per_pack=SegmentsPerPack(1.0, 1.0, 1),
        attention_cost=1,
        attention_cost_share=0.1,
        only_halves=False,
    )


def of_chats(*outcomes: Outcome) -> Advice:
    return advise(outcomes, FormatName.MESSAGES, "bfd", chooses_tokens=True)


def of_text(*outcomes: Outcome) -> Advice:
    return advise(outcomes, FormatName.TEXT, "bfd_split", chooses_tokens=False)


def chosen(advice: Advice) -> tuple[str, int]:
    return advice.strategy, advice.max_length


def test_conversations_are_not_split_for_the_sake_of_fill_or_of_tokens() -> None:
    advice = of_chats(
        outcome("bfd", 2048, fill=0.9, out=300, lost=90_000),
        outcome("bfd_split", 2048, fill=0.999, cut=300),
        outcome("wrapped", 2048, fill=1.0, cut=4_000),
    )
    assert chosen(advice) == ("bfd", 2048)
    assert advice.text == (
        "--strategy bfd --max-length 2048: 97.0 % of the 10,000 conversations stay whole (300 left out, the fewest "
        "here), packs are 90.0 % full, and a larger --max-length would keep more"
    )


def test_where_all_outcomes_split_conversations_the_sentence_says_what_that_costs() -> None:
    advice = of_chats(outcome("wrapped", 2048, fill=1.0, cut=4_000), outcome("bfd_split", 2048, fill=0.99, cut=3))
    assert chosen(advice) == ("bfd_split", 2048)
    assert "answers cut off from their prompts train worse" in advice.text


def test_the_shortest_packs_that_keep_as_many_whole_are_chosen() -> None:
    lengths = [
        outcome("bfd", 1024, fill=0.999, out=200),
        outcome("bfd", 2048, fill=0.998, out=9),
        outcome("bfd", 4096, fill=0.999, out=2),
        outcome("bfd", 8192, fill=0.999),
    ]
    assert chosen(of_chats(*lengths)) == ("bfd", 2048)  # 9 of 10,000 are as good as none
    assert chosen(of_chats(*lengths[2:])) == ("bfd", 4096)


def test_among_equals_in_structure_the_better_fill_is_chosen_and_then_the_default() -> None:
    assert chosen(of_chats(outcome("in_order", 2048, fill=0.8), outcome("bfd", 2048, fill=0.99))) == ("bfd", 2048)
    equals = [outcome("in_order", 2048, fill=0.99), outcome("bfd", 2048, fill=0.99)]
    assert chosen(of_chats(*equals)) == ("bfd", 2048)
    assert chosen(of_chats(outcome("bfd", 2048, fill=0.7), outcome("bfd", 4096, fill=0.99))) == ("bfd", 4096)


def test_text_loses_no_tokens_and_is_cut_where_it_has_to_be() -> None:
    advice = of_text(
        outcome("bfd", 2048, fill=0.999, out=300, lost=900_000),
        outcome("bfd_split", 2048, fill=0.998, cut=300),
        outcome("wrapped", 2048, fill=1.0, cut=4_000),
        outcome("bfd_split", 8192, fill=0.998, cut=290),
    )
    assert chosen(advice) == ("bfd_split", 2048)
    assert advice.text == (
        "--strategy bfd_split --max-length 2048: 97.0 % of the 10,000 documents stay whole (300 cut), no token is "
        "lost, packs are 99.8 % full"
    )


def test_what_is_refused_is_never_advised_and_no_share_is_rounded_up() -> None:
    refused = Outcome(strategy="bfd", max_length=1024, overlong="error", refused="a.jsonl:1: overlong")
    advice = of_chats(refused, outcome("bfd", 2048, fill=0.99999))
    assert chosen(advice) == ("bfd", 2048)
    assert "every one of the 10,000 conversations stays whole, packs are 99.9 % full" in advice.text


@pytest.mark.parametrize("format", [name for name in FormatName if name is not FormatName.AUTO])
def test_packs_that_nothing_can_fill_are_explained_in_one_sentence(format: FormatName) -> None:
    halves = replace(outcome("bfd", 2048, fill=0.6), only_halves=True)
    text = advise([halves], format, "bfd", chooses_tokens=True).text
    assert "packs are 60.0 % full, since most" in text
    assert "\n" not in text
    assert not text.endswith(".")
