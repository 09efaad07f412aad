"""TRL's own packer on the same documents. Its packs come in the order in which they were opened, as ours do,
so everything it gives is compared: ids for all three strategies, and seq_lengths where it has them."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtool.packing import STRATEGIES

from . import reference

trl = pytest.importorskip("trl")
datasets = pytest.importorskip("datasets")

documents = st.lists(st.integers(0, 30), min_size=1, max_size=40).filter(any)


@pytest.fixture(autouse=True, scope="module")
def _quiet_and_loaded() -> Iterator[None]:
    datasets.disable_progress_bars()
    assert trl.pack_dataset  # trl imports it, and torch, when it is first asked for: seconds
    yield
    datasets.enable_progress_bars()


def pack_with_trl(lengths: list[int], max_length: int, strategy: str) -> tuple[list[list[int]], list[list[int]]]:
    """input_ids and seq_lengths when all documents are one batch; ids count through the documents."""
    ids = np.split(np.arange(sum(lengths)), np.cumsum(lengths)[:-1])
    dataset = datasets.Dataset.from_dict({"input_ids": [row.tolist() for row in ids]})
    packed = trl.pack_dataset(dataset, max_length, strategy, map_kwargs={"batch_size": None})
    columns = packed[:]
    return columns["input_ids"], columns.get("seq_lengths", [])


def pack_here(items: list[tuple[int, int]], max_length: int, strategy: str) -> tuple[list[list[int]], list[list[int]]]:
    """The same, of items given as (first id, length)."""
    lengths = [length for _, length in items]
    packing = STRATEGIES[strategy].plan(np.array(lengths, dtype=np.int32), max_length, None)
    packs = reference.as_lists(packing, lengths)
    ids = [[items[item][0] + offset + i for item, offset, size in pack for i in range(size)] for pack in packs]
    return ids, [[size for _, _, size in pack] for pack in packs]


def with_first_ids(lengths: list[int]) -> list[tuple[int, int]]:
    """Documents as (first id, length), without the empty ones, which no packer keeps."""
    firsts = np.cumsum([0, *lengths]).tolist()
    return [(first, length) for first, length in zip(firsts, lengths, strict=False) if length]


@given(documents, st.integers(1, 24))
def test_bfd_with_truncated_documents_is_trls_bfd(lengths: list[int], max_length: int) -> None:
    items = [(first, min(length, max_length)) for first, length in with_first_ids(lengths)]
    assert pack_here(items, max_length, "bfd") == pack_with_trl(lengths, max_length, "bfd")


@given(documents, st.integers(1, 24))
def test_bfd_over_pieces_is_trls_bfd_split(lengths: list[int], max_length: int) -> None:
    items = [
        (first + offset, min(max_length, length - offset))
        for first, length in with_first_ids(lengths)
        for offset in range(0, length, max_length)
    ]
    assert pack_here(items, max_length, "bfd_split") == pack_with_trl(lengths, max_length, "bfd_split")


@given(documents, st.integers(1, 24))
def test_wrapped_is_trls_wrapped(lengths: list[int], max_length: int) -> None:
    ids, _ = pack_here(with_first_ids(lengths), max_length, "wrapped")
    assert ids == pack_with_trl(lengths, max_length, "wrapped")[0]
