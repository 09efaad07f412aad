"""The encoders of one tokenizer: the reference, and a fast one that has passed the proof of hard texts."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

from packtool.encoders.fast import FastEncoder, Unfit
from packtool.encoders.proof import Proof
from packtool.encoders.reference import Reference
from packtool.panics import unseen_panics
from packtool.tokenizer import TokenizerFiles


class Encoders:
    """The reference and, perhaps, a fast encoder beside it, with what holds it against the reference."""

    def __init__(self, reference: Reference, fast: FastEncoder | None = None) -> None:
        """Put encoders of one tokenizer together, and try ``fast`` on texts that are hard for it.

        Raises:
            Differs: it gave other tokens than ``tokenizers`` for one of them.
        """
        self.reference = reference
        self.fast = fast
        self.proof = None if fast is None else Proof(fast, reference)


_ready: list[tuple[str, bool, Encoders]] = []
"""At most one: the digest of its files, whether a fast one was asked for, and what was loaded."""


def load_encoders(files: TokenizerFiles, *, fast: bool) -> Encoders:
    """Load the encoders of a tokenizer, or take those that ``make_ready`` has loaded in this process.

    Args:
        files: where the tokenizer is.
        fast: whether to have a fast encoder, too, where it takes this tokenizer.

    Raises:
        Misuse: the tokenizer cannot be loaded.
        Differs: the fast encoder gave other tokens than ``tokenizers`` for one of the texts that are hard for it.
    """
    if _ready and _ready[0][:2] == (files.digest, fast):
        return _ready.pop()[2]
    _ready.clear()
    if not fast:
        return Encoders(Reference(files))
    with unseen_panics(), ThreadPoolExecutor(1) as beside:
        # tokenizers keeps Python's lock while it loads, so it must not be first.
        begun = Event()
        loading = beside.submit(_fast_encoder, files, begun)
        begun.wait()
        reference = Reference(files)
        return Encoders(reference, loading.result())


def _fast_encoder(files: TokenizerFiles, begun: Event) -> FastEncoder | None:
    try:
        return FastEncoder(files, begun.set)
    except Unfit:
        return None  # where it was asked for by name, that was refused before
    finally:
        begun.set()


def make_ready(files: TokenizerFiles, *, fast: bool) -> None:
    """Load encoders for the next ``load_encoders`` of this process, which takes a second for a large vocabulary.

    They are taken only if the tokenizer's files are by then what they were before they were loaded.

    Raises:
        Misuse: as ``load_encoders``, which then tries again.
        Differs: the same.
    """
    digest = files.digest
    _ready[:] = [(digest, fast, load_encoders(files, fast=fast))]
