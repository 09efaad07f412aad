"""VarlenCollator against tensors written by hand."""

import pickle
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from packtool.errors import BadData, Misuse
from packtool.torch.collator import MOST_SEGMENTS, VarlenCollator
from packtool.torch.dataset import PackedDataset
from tests import runs

VARLEN_KEYS = ["input_ids", "labels", "position_ids", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"]
NO = -100


def pack(lengths: list[int], first: int = 10) -> dict[str, torch.Tensor]:
    """Tokens that count up from ``first``; the first of each segment does not train."""
    size = sum(lengths)
    ids = torch.arange(first, first + size)
    positions = torch.cat([torch.arange(length) for length in lengths])
    return {
        "input_ids": ids,
        "labels": torch.where(positions == 0, NO, ids),
        "position_ids": positions,
        "seq_lengths": torch.tensor(lengths),
        "doc_ids": torch.arange(len(lengths)),
    }


ONE, TWO = pack([3, 1]), pack([2], first=20)


def assert_batch(batch: dict[str, Any], **expected: Any) -> None:
    """The same keys in the same order, with equal values of equal types, all of them contiguous."""
    assert list(batch) == list(expected)
    for name, value in expected.items():
        if isinstance(value, int):
            assert type(batch[name]) is int
            assert batch[name] == value, name
        else:
            assert batch[name].dtype == value.dtype, name
            assert batch[name].tolist() == value.tolist(), name
            assert batch[name].is_contiguous()


def row(*values: int) -> torch.Tensor:
    """int64 [1, T]."""
    return torch.tensor([values])


def offsets(*values: int) -> torch.Tensor:
    """int32 [S + 1]."""
    return torch.tensor(values, dtype=torch.int32)


def test_two_packs_become_one_row_with_the_boundaries_of_both() -> None:
    assert_batch(
        VarlenCollator()([ONE, TWO]),
        input_ids=row(10, 11, 12, 13, 20, 21),
        labels=row(NO, 11, 12, NO, NO, 21),
        position_ids=row(0, 1, 2, 0, 0, 1),
        cu_seq_lens_q=offsets(0, 3, 4, 6),
        cu_seq_lens_k=offsets(0, 3, 4, 6),
        max_length_q=3,
        max_length_k=3,
    )


def test_a_pack_of_one_segment() -> None:
    assert_batch(
        VarlenCollator(seq_idx=True)([TWO]),
        input_ids=row(20, 21),
        labels=row(NO, 21),
        position_ids=row(0, 1),
        cu_seq_lens_q=offsets(0, 2),
        cu_seq_lens_k=offsets(0, 2),
        max_length_q=2,
        max_length_k=2,
        seq_idx=torch.tensor([[0, 0]], dtype=torch.int32),
    )


def test_seq_idx_numbers_the_segments_of_the_whole_row() -> None:
    batch = VarlenCollator(seq_idx=True)([ONE, TWO])
    assert list(batch) == [*VARLEN_KEYS, "seq_idx"]
    assert batch["seq_idx"].dtype == torch.int32
    assert batch["seq_idx"].tolist() == [[0, 0, 0, 1, 2, 2]]


def test_segments_of_one_token_4096_of_them() -> None:
    batch = VarlenCollator(seq_idx=True, shift_labels=True)([pack([1] * 4096)])
    assert_batch(
        batch,
        input_ids=torch.arange(10, 4106)[None],
        labels=torch.full((1, 4096), NO),
        position_ids=torch.zeros(1, 4096, dtype=torch.int64),
        cu_seq_lens_q=torch.arange(4097, dtype=torch.int32),
        cu_seq_lens_k=torch.arange(4097, dtype=torch.int32),
        max_length_q=1,
        max_length_k=1,
        seq_idx=torch.arange(4096, dtype=torch.int32)[None],
    )


@pytest.mark.parametrize("options", [{"pad_to": 8}, {"pad_to_multiple_of": 4}])
def test_the_tail_is_padded_as_one_segment_of_its_own(options: dict[str, int]) -> None:
    assert_batch(
        VarlenCollator(seq_idx=True, pad_id=7, **options)([ONE, TWO]),
        input_ids=row(10, 11, 12, 13, 20, 21, 7, 7),
        labels=row(NO, 11, 12, NO, NO, 21, NO, NO),
        position_ids=row(0, 1, 2, 0, 0, 1, 0, 1),
        cu_seq_lens_q=offsets(0, 3, 4, 6, 8),
        cu_seq_lens_k=offsets(0, 3, 4, 6, 8),
        max_length_q=3,
        max_length_k=3,
        seq_idx=torch.tensor([[0, 0, 0, 1, 2, 2, 3, 3]], dtype=torch.int32),
    )


def test_the_longest_segment_may_be_the_padding() -> None:
    assert VarlenCollator(pad_to=20)([TWO])["max_length_q"] == 18


def test_nothing_is_padded_where_nothing_is_missing() -> None:
    for options in ({"pad_to": 6}, {"pad_to_multiple_of": 3}):
        assert VarlenCollator(**options)([ONE, TWO])["cu_seq_lens_q"].tolist() == [0, 3, 4, 6]


def test_offsets_of_fixed_length_repeat_the_last() -> None:
    batch = VarlenCollator(max_segments=6, max_length=16, pad_to=8)([ONE, TWO])
    assert batch["cu_seq_lens_q"].tolist() == [0, 3, 4, 6, 8, 8, 8]
    assert batch["cu_seq_lens_k"].tolist() == [0, 3, 4, 6, 8, 8, 8]
    assert (batch["max_length_q"], batch["max_length_k"]) == (16, 16)


def test_queries_and_keys_have_tensors_of_their_own() -> None:
    batch = VarlenCollator()([ONE])
    batch["cu_seq_lens_q"].zero_()
    assert batch["cu_seq_lens_k"].tolist() == [0, 3, 4]


def test_the_packs_are_left_as_they_are() -> None:
    one = pack([3, 1])
    batch = VarlenCollator(shift_labels=True)([one])
    for value in batch.values():
        if isinstance(value, torch.Tensor):
            value.zero_()
    assert {name: values.tolist() for name, values in one.items()} == {
        name: values.tolist() for name, values in ONE.items()
    }


def test_shifted_labels_never_cross_a_boundary() -> None:
    batch = VarlenCollator(shift_labels=True, pad_to=8)([ONE, TWO])
    assert batch["labels"].tolist() == [[11, 12, NO, NO, 21, NO, NO, NO]]
    # also where labels break the rule that a segment's first token never trains
    wrong = {**ONE, "labels": ONE["input_ids"]}
    assert VarlenCollator(shift_labels=True)([wrong, TWO])["labels"].tolist() == [[11, 12, NO, NO, 21, NO]]


def test_the_dense_mask_is_float_and_block_causal() -> None:
    low = torch.finfo(torch.float32).min
    mask = torch.tensor(
        [
            [[[0, low, low, low], [0, 0, low, low], [0, 0, 0, low], [low, low, low, 0]]],
            [[[0, low, low, low], [0, 0, low, low], [low, low, 0, low], [low, low, 0, 0]]],
        ]
    )
    assert_batch(
        VarlenCollator(dense=True, seq_idx=True, pad_id=7)([ONE, TWO]),
        input_ids=torch.tensor([[10, 11, 12, 13], [20, 21, 7, 7]]),
        labels=torch.tensor([[NO, 11, 12, NO], [NO, 21, NO, NO]]),
        position_ids=torch.tensor([[0, 1, 2, 0], [0, 1, 0, 1]]),
        attention_mask=mask,
        seq_idx=torch.tensor([[0, 0, 0, 1], [0, 0, 1, 1]], dtype=torch.int32),
    )


def test_the_dense_mask_has_the_type_and_size_asked_for() -> None:
    batch = VarlenCollator(dense=True, mask_dtype=torch.bfloat16, pad_to=8)([ONE])
    mask = batch["attention_mask"]
    assert isinstance(mask, torch.Tensor)
    assert (mask.dtype, mask.shape) == (torch.bfloat16, (1, 1, 8, 8))
    assert mask.isfinite().all(), "the least number, not minus infinity"
    assert (mask == 0).any(-1).all(), "every token sees one, also in the padding"
    assert "cu_seq_lens_q" not in batch, "all four varlen keys or none"


def test_rows_of_datasets_give_the_same_batches(packed: Path, tmp_path: Path) -> None:
    ours = PackedDataset(packed)
    theirs = datasets.load_dataset(str(packed), split="train", cache_dir=str(tmp_path))
    few = theirs.select_columns(["input_ids", "labels", "seq_lengths"])
    for collator in (VarlenCollator(seq_idx=True), VarlenCollator(dense=True)):
        expected = collator([ours[3], ours[70]])
        for rows in (theirs, theirs.with_format("torch"), theirs.with_format("numpy"), few):
            assert_batch(collator([rows[3], rows[70]]), **expected)
    assert list(runs.rows(packed)[3]) == theirs.column_names


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=9), min_size=1, max_size=4), st.integers(1, 16))
def test_boundaries_cover_the_row_and_follow_from_the_lengths_alone(lengths: list[list[int]], multiple: int) -> None:
    batch = VarlenCollator(pad_to_multiple_of=multiple, seq_idx=True)([pack(each) for each in lengths])
    ids, cu, numbers = batch["input_ids"], batch["cu_seq_lens_q"], batch["seq_idx"]
    assert isinstance(ids, torch.Tensor)
    assert isinstance(cu, torch.Tensor)
    assert isinstance(numbers, torch.Tensor)
    flat = [length for each in lengths for length in each]
    room = -sum(flat) % multiple
    assert cu.diff().tolist() == flat + [room] * bool(room)
    assert (int(cu[0]), int(cu[-1])) == (0, ids.shape[1])
    assert ids.shape[1] % multiple == 0
    assert batch["max_length_q"] == max([*flat, room])
    assert numbers[0].bincount().tolist() == cu.diff().tolist()


# -- what is refused ---------------------------------------------------------------------------------------


def test_more_segments_than_asked_for_are_refused() -> None:
    with pytest.raises(Misuse, match="3 segments in a batch, but max_segments is 2: set it to 3 or more"):
        VarlenCollator(max_segments=2)([ONE, TWO])
    with pytest.raises(Misuse, match="4 segments"):
        VarlenCollator(max_segments=3, pad_to=8)([ONE, TWO])


def test_more_segments_than_a_kernel_takes_are_refused() -> None:
    many = pack([1] * 32_768)
    assert len(VarlenCollator()([many, pack([1] * 32_767)])["cu_seq_lens_q"]) == MOST_SEGMENTS + 1
    with pytest.raises(Misuse, match="65536 segments in a batch, one kernel call takes 65535"):
        VarlenCollator()([many, many])
    with pytest.raises(Misuse, match="max_segments is 65536"):
        VarlenCollator(max_segments=65_536)


def test_a_segment_longer_than_max_length_is_refused() -> None:
    with pytest.raises(Misuse, match=r"a segment of 3 tokens .* but max_length is 2"):
        VarlenCollator(max_length=2)([ONE])
    with pytest.raises(Misuse, match=r"a segment of 6 tokens \(the tail's padding is one\), but max_length is 4"):
        VarlenCollator(max_length=4, pad_to=10)([ONE])


def test_a_batch_longer_than_its_room_is_refused() -> None:
    with pytest.raises(Misuse, match="6 tokens in a row, but pad_to is 5"):
        VarlenCollator(pad_to=5)([ONE, TWO])
    with pytest.raises(Misuse, match="4 tokens in a row, but pad_to is 3"):
        VarlenCollator(dense=True, pad_to=3)([ONE, TWO])


def test_a_batch_of_nothing_is_refused() -> None:
    with pytest.raises(Misuse, match="a batch of no packs"):
        VarlenCollator()([])


@pytest.mark.parametrize("lengths", [[], [4, 0], [5, -1], [3], [3, 2]])
def test_lengths_that_do_not_fit_the_tokens_are_refused(lengths: list[int]) -> None:
    with pytest.raises(BadData, match="a pack of 4 tokens whose seq_lengths sum to"):
        VarlenCollator()([{**ONE, "seq_lengths": torch.tensor(lengths, dtype=torch.int64)}])


def test_labels_of_another_length_are_refused() -> None:
    with pytest.raises(BadData, match="a pack of 4 tokens with 3 labels"):
        VarlenCollator()([{**ONE, "labels": ONE["labels"][:3]}])


@pytest.mark.parametrize("name", ["input_ids", "labels", "seq_lengths"])
@pytest.mark.parametrize(
    "wrong", [None, [None], ["a"], [[1, 2, 3, 4]], [1.0, 2.0, 3.0, 4.0], [True] * 4, torch.ones(1, 4), 4]
)
def test_a_column_that_is_no_list_of_whole_numbers_is_refused(name: str, wrong: Any) -> None:
    with pytest.raises(BadData, match=f"a pack whose {name} are") as caught:
        VarlenCollator()([{**ONE, name: wrong}])
    assert "\n" not in str(caught.value)


def test_one_pack_without_a_list_is_refused() -> None:
    with pytest.raises(Misuse, match="expected a list of packs"):
        VarlenCollator()(ONE)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", ["arrow", "pandas"])
def test_rows_that_are_no_dictionaries_are_refused(packed: Path, tmp_path: Path, form: str) -> None:
    rows = datasets.load_dataset(str(packed), split="train", cache_dir=str(tmp_path)).with_format(form)
    with pytest.raises(BadData, match=r"a pack is a dictionary of columns, but this is a .* without with_format"):
        VarlenCollator()([rows[0], rows[1]])


def test_positions_are_made_of_the_lengths_whatever_a_row_says() -> None:
    for positions in (torch.arange(4), torch.zeros(2), None):
        batch = VarlenCollator()([{**ONE, "position_ids": positions}, TWO])
        assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 0, 1]]


def test_a_column_that_a_trainer_dropped_is_named_with_the_setting_that_keeps_it() -> None:
    with pytest.raises(
        BadData, match=r"a pack without seq_lengths \(it has input_ids, labels\).*remove_unused_columns"
    ):
        VarlenCollator()([{"input_ids": [1, 2], "labels": [NO, 2]}])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pad_to": 0}, "pad_to is 0"),
        ({"pad_to_multiple_of": -8}, "pad_to_multiple_of is -8"),
        ({"pad_to": 8, "pad_to_multiple_of": 8}, "exclude each other"),
        ({"pad_to": 10.5}, "pad_to is 10.5: a whole number"),
        ({"max_segments": True}, "max_segments is True: a whole number"),
        ({"pad_id": -1}, "pad_id is -1"),
        ({"dense": True, "max_segments": 8}, "varlen keys"),
        ({"dense": True, "max_length": 8}, "varlen keys"),
        ({"dense": True, "mask_dtype": torch.bool}, "mask_dtype is torch.bool: a float type"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(Misuse, match=message):
        VarlenCollator(**options)


def test_a_collator_can_be_sent_to_a_spawned_worker() -> None:
    collator = VarlenCollator(pad_to=8, mask_dtype=torch.bfloat16)
    assert pickle.loads(pickle.dumps(collator)) == collator


def test_numpy_rows_that_cannot_be_written_are_taken(recwarn: pytest.WarningsRecorder) -> None:
    frozen = {name: values.numpy().copy() for name, values in ONE.items()}
    for values in frozen.values():
        values.flags.writeable = False
    assert VarlenCollator()([frozen])["input_ids"].tolist() == [[10, 11, 12, 13]]
    assert [str(warning.message) for warning in recwarn] == []
