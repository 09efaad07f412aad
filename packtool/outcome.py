"""What one strategy and length make of some records: plain numbers, as the dataset packed so would have them."""

from dataclasses import dataclass
from typing import Self

from packtool.sampling import Interval
from packtool.statistics import SegmentsPerPack


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One strategy and length; padding is in no count, shares are from 0 to 1."""

    strategy: str
    max_length: int
    overlong: str
    """What becomes of longer documents."""
    refused: str
    """Why ``pack`` would stop and make no dataset; "" where it would not. The numbers below are 0 then."""
    packs: int
    lower_bound_packs: int
    fill: float
    """tokens / (packs x max_length)."""
    documents: int
    """Documents of which at least one token is in a pack."""
    documents_cut: int
    """Those among them that are not whole in one segment: split, or without some of their tokens."""
    documents_left_out: int
    """Records that are in no pack; bad records are not among them."""
    tokens: int
    tokens_lost: int
    """Tokens of documents that are in no pack."""
    segments: int
    segments_per_pack: SegmentsPerPack
    attention_cost: int
    """The sum of squared segment lengths: token pairs of attention without a causal mask."""
    attention_cost_share: float
    """attention_cost / (packs x max_length^2)."""
    only_halves: bool
    """Whether no packer can fill such packs, since most documents take more than half of one."""
    packs_interval: Interval | None = None
    """Where the true number lies, of a sample; None where everything was read."""
    fill_interval: Interval | None = None

    @classmethod
    def refusing(cls, strategy: str, max_length: int, overlong: str, reason: str) -> Self:
        """The outcome of a run that would stop."""
        return cls(
            strategy=strategy,
            max_length=max_length,
            overlong=overlong,
            refused=reason,
            packs=0,
            lower_bound_packs=0,
            fill=0.0,
            documents=0,
            documents_cut=0,
            documents_left_out=0,
            tokens=0,
            tokens_lost=0,
            segments=0,
            segments_per_pack=SegmentsPerPack(0.0, 0.0, 0),
            attention_cost=0,
            attention_cost_share=0.0,
            only_halves=False,
        )
