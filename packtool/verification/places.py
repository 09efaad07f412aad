"""Where a stretch stands, in words: the shard, pack and segment of a dataset, or a line of its rejects."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from packtool.manifest import REJECTS_NAME


@dataclass(frozen=True, slots=True)
class Places:
    """The shards' names and the numbers of their first packs."""

    names: Sequence[str]
    firsts: Sequence[int]
    """One more than there are names."""

    def of(self, stretch: Any) -> str:
        """The place of one record of ``STRETCH``."""
        if stretch["pack"] < 0:
            return f"{REJECTS_NAME}:{-stretch['pack']}"
        shard = min(bisect_right(self.firsts, int(stretch["pack"])), len(self.names)) - 1
        return f"{self.names[shard]}: pack {stretch['pack']}: segment {stretch['place']}"
