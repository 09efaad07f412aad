"""The numbers of the data contract that every part of packtool agrees on; imports nothing of it."""

from typing import Final, Literal

FORMAT_VERSION: Final[Literal[1]] = 1
"""Of the folder, its manifest and the metadata of its shards."""
IGNORED = -100
"""The label of a token that carries no loss."""
PADDING_DOC = -1
"""The doc id of the padding segment."""
MOST_SHARDS = 99_999
"""As many as the five digits of a shard's name can count."""
