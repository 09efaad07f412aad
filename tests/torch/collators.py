"""Collators of the tests, in a module that a spawned worker imports quickly."""

from packtool.torch.dataset import Pack

Step = list[tuple[int, ...]]


def documents(packs: list[Pack]) -> Step:
    """Which documents are in each pack; (-1,) is a blank one."""
    return [tuple(pack["doc_ids"].tolist()) for pack in packs]


def first(packs: list[Pack]) -> Pack:
    """The only pack of a batch of one."""
    return packs[0]
