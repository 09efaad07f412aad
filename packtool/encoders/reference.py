"""The reference: ``tokenizers`` itself, adding nothing, with offsets on request."""

from collections.abc import Callable, Sequence

from tokenizers import Encoding, Tokenizer

from packtool.encoders.flat_ids import FlatIds
from packtool.errors import BadData, one_line
from packtool.panics import is_panic, unseen_panics
from packtool.tokenizer import TokenizerFiles, load, without_post_processor

_handed_on: list[tuple[str, Tokenizer]] = []
"""At most one: the digest of its files, and a tokenizer that nobody else uses any more."""


def hand_on(digest: str, tokenizer: Tokenizer) -> None:
    """Give a tokenizer to the next ``Reference`` of this process, which need not load it again (0.3 s a 128,000 ids).

    Args:
        digest: of its files, taken before they were loaded.
        tokenizer: as ``tokenizer.load`` gives it. The caller must not use it afterwards.
    """
    _handed_on[:] = [(digest, tokenizer)]


def forget_handed_on() -> None:
    """Free what nobody took: workers load their own."""
    _handed_on.clear()


def _take(files: TokenizerFiles) -> Tokenizer | None:
    if _handed_on and _handed_on[0][0] == files.digest:
        return _handed_on.pop()[1]
    return None


class Reference:
    """Encodes with ``tokenizers``."""

    name = "tokenizers"

    def __init__(self, files: TokenizerFiles) -> None:
        """Load the tokenizer.

        Raises:
            Misuse: it cannot be loaded.
        """
        self.path = files.path
        self.tokenizer: Tokenizer = without_post_processor(_take(files) or load(files))

    def encode(self, texts: Sequence[str]) -> FlatIds:
        """The ids of texts; without offsets, which takes about two thirds of the time.

        Raises:
            BadData: the tokenizer cannot encode a text, for want of a token for what is not in its vocabulary.
        """
        return FlatIds.of([encoding.ids for encoding in self._encoded(self.tokenizer.encode_batch_fast, texts)])

    def encode_with_offsets(self, texts: Sequence[str]) -> list[Encoding]:
        """The same, and for every token the half-open range of characters that it stands for.

        Raises:
            BadData: as ``encode``.
        """
        return self._encoded(self.tokenizer.encode_batch, texts)

    def _encoded(self, encode: Callable[..., list[Encoding]], texts: Sequence[str]) -> list[Encoding]:
        try:
            with unseen_panics():
                return encode(texts, add_special_tokens=False)
        except BaseException as error:
            # The library raises plain Exception for whatever the model cannot do.
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            raise BadData(f"{self.path}: cannot encode the texts: {one_line(error)}") from None
