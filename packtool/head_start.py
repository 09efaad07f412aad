"""The head start of a run: a process that loads the encoders while this one imports its modules and settles options.

It only saves time: whatever fails here is met again by the run, which says what it is. Imports nothing heavy.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import packtool
from packtool.config import EncoderName, FormatName, PackConfig
from packtool.errors import PacktoolError
from packtool.executor import Workers

TOLD = "PACKTOOL_PRELOAD"
"""The environment variable that tells ``preload`` what to load: JSON of whose packtool asks, the tokenizer, and whether
a fast encoder is to be loaded, too."""
_LEAST_BYTES = 8 << 20
"""Less is read by one process, or is done with before a second one has started."""
_NOT_TEXT = (".parquet", ".arrow", ".feather")
"""Files that often hold tokens, for which nothing is loaded."""


def head_start(config: PackConfig, workers: Workers) -> None:
    """Begin to load the tokenizer of ``config`` for all ``workers``, where the run will have use for that.

    It will where files of text are packed that are much larger than the tokenizer, and for the first time: another
    try may find all of its tokens in the cache or in what a stopped run left.
    """
    tokenizer = Path(config.tokenizer)
    with suppress(PacktoolError, OSError, ValueError):
        if (
            config.limit is None
            and config.format is not FormatName.TOKENS
            and (config.overwrite or not config.output.exists())
            and (config.cache_dir is None or not config.cache_dir.exists())
            and tokenizer.exists()
            and _text_bytes(config.sources) >= max(_LEAST_BYTES, _size(tokenizer))
        ):
            fast = config.encoder is not EncoderName.TOKENIZERS
            workers.start("packtool.preload", {TOLD: json.dumps([packtool.__file__, config.tokenizer, fast])})


def _text_bytes(sources: Sequence[str]) -> int:
    """How much text files are known to hold; 0 where one of them is none, or is not known without a search."""
    paths = [Path(source) for source in sources]
    if not all(path.is_file() and path.suffix not in _NOT_TEXT for path in paths):
        return 0
    return sum(path.stat().st_size for path in paths)


def _size(tokenizer: Path) -> int:
    return (tokenizer / "tokenizer.json" if tokenizer.is_dir() else tokenizer).stat().st_size
