"""The fast encoder: ``fastokens``, where it is installed and takes the tokenizer. It is never trusted unproven."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

import numpy as np
import orjson

from packtool.encoders.flat_ids import FlatIds
from packtool.errors import one_line
from packtool.panics import unseen_panics
from packtool.tokenizer import TokenizerFiles, switch_off

_LIBRARY = "fastokens"
_Result = TypeVar("_Result")


class Unfit(Exception):
    """Why there is no fast encoder for a tokenizer."""


class Differs(Exception):
    """A fast encoder gave other tokens than ``tokenizers``, or none; its text says what it did."""


@lru_cache(maxsize=1)
def fast_encoder_name() -> str | None:
    """What units made by the fast encoder are marked with: its name and version. None where it is not installed."""
    try:
        return f"{_LIBRARY} {version(_LIBRARY)}"
    except PackageNotFoundError:
        return None


class FastEncoder:
    """Encodes with ``fastokens``, from the same file as the reference."""

    def __init__(self, files: TokenizerFiles, on_loading: Callable[[], object] = lambda: None) -> None:
        """Load the tokenizer, with the same things switched off as for ``tokenizers``.

        Args:
            files: where it is.
            on_loading: called when only that is left which takes most of the time, and lets other threads run.

        Raises:
            Unfit: the library is not there, or does not take this tokenizer.
        """
        name = fast_encoder_name()
        if name is None:
            raise Unfit(f"{_LIBRARY} is not installed")
        self.name = name
        self._encode_batch = _guarded(lambda: _load(files, on_loading), _unfit).encode_batch_flat

    def encode(self, texts: Sequence[str]) -> FlatIds:
        """The ids of texts.

        Raises:
            Differs: the library failed, or what it gave is no list of ids for each text.
        """
        return _guarded(lambda: self._encoded(texts), _failed)

    def _encoded(self, texts: Sequence[str]) -> FlatIds:
        raw_ids, raw_bounds = self._encode_batch(list(texts))
        ids = np.frombuffer(raw_ids, "<u4").view(np.int32)
        bounds = np.frombuffer(raw_bounds, "<u8").astype(np.int64)
        lengths = np.diff(bounds)
        if len(lengths) != len(texts) or bounds[0] != 0 or bounds[-1] != len(ids) or (lengths < 0).any():
            raise ValueError("gave no list of tokens for each text")
        return FlatIds(ids, lengths.astype(np.int32))


def _load(files: TokenizerFiles, on_loading: Callable[[], object]) -> Any:
    import fastokens

    facts = orjson.loads(files.path.read_bytes())
    switch_off(facts)
    facts["post_processor"] = None
    model = facts["model"]
    merges = model.get("merges") or ()
    if all(isinstance(merge, list) and len(merge) == 2 and " " not in merge[0] + merge[1] for merge in merges):
        # The older form, which is read in three quarters of the time.
        model["merges"] = [f"{one} {other}" for one, other in merges]
    described = orjson.dumps(facts).decode()
    on_loading()
    return fastokens.Tokenizer.from_json_str(described)


def _guarded(work: Callable[[], _Result], told: Callable[[BaseException], Exception]) -> _Result:
    """Do ``work``; whatever the library raises becomes what ``told`` makes of it.

    A panic of a native library is no ``Exception``.
    """
    try:
        with unseen_panics():
            return work()
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:
        raise told(error) from None


def _failed(error: BaseException) -> Differs:
    return Differs(f"it failed on a text: {one_line(error)}")


def _unfit(error: BaseException) -> Unfit:
    return Unfit(f"{_LIBRARY} does not take this tokenizer: {one_line(error)}")
