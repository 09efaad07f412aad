"""What one strategy and length make of some records: plain numbers, as the dataset packed so would have them."""

from dataclasses import dataclass

from packtool.sampling import Interval
from packtool.statistics import SegmentsPerPack

_NO_SEGMENTS = SegmentsPerPack(0.0, 0.0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One strategy and length; padding is in no count, shares are from 0 to 1."""

    strategy: str
    max_length: int
    overlong: str
    """What becomes of longer documents."""
    refused: str = ""
    """Why ``pack`` would stop and make no dataset; "" where it would not. The numbers below are 0 then."""
    packs: int = 0
    lower_bound_packs: int = 0
    fill: float = 0.0
    """tokens / (packs x max_length)."""
    documents: int = 0
    """Documents of which at least one token is in a pack."""
    documents_cut: int = 0
    """Those among them that are not whole in one segment: split, or without some of their tokens."""
    documents_left_out: int = 0
    """Records that are in no pack; bad records are not among them."""
    tokens: int = 0
    tokens_lost: int = 0
    """Tokens of documents that are in no pack."""
    segments: int = 0
    segments_per_pack: SegmentsPerPack = _NO_SEGMENTS
    attention_cost: int = 0
    """The sum of squared segment lengths: token pairs of attention without a causal mask."""
    attention_cost_share: float = 0.0
    """attention_cost / (packs x max_length^2)."""
    only_halves: bool = False
    """Whether no packer can fill such packs, as most hold a piece of more than half of max_length."""
    packs_interval: Interval | None = None
    """Where the true number lies, of a sample; None where everything was read."""
    fill_interval: Interval | None = None
