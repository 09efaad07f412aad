"""The gradient of a packed step is that of its documents trained alone, however the step is cut up."""

from pathlib import Path

import pytest
import torch

from packtool.torch.collator import Batch, VarlenCollator
from packtool.torch.loader import packed_dataloader
from tests import runs
from tests.torch.prefix_model import PrefixModel, summed_loss, trained_tokens

Gradients = list[torch.Tensor]


def gradients(model: PrefixModel) -> Gradients:
    """Of every parameter, which then have none."""
    found = []
    for parameter in model.parameters():
        assert parameter.grad is not None
        found.append(parameter.grad)
        parameter.grad = None
    return found


def alone(rows: list[runs.Row]) -> Gradients:
    """The mean over trained tokens, each document in a batch of its own."""
    model = PrefixModel()
    total = sum(label != -100 for row in rows for label in row["labels"])
    for row in rows:
        start = 0
        for length in row["seq_lengths"]:
            ids = torch.tensor(row["input_ids"][start : start + length])
            labels = torch.tensor(row["labels"][start : start + length])
            start += length
            logits = model(ids, torch.arange(length), torch.tensor([length]))
            trained = labels[1:] != -100
            if trained.any():
                loss = torch.nn.functional.cross_entropy(logits[:-1][trained], labels[1:][trained], reduction="sum")
                (loss / total).backward()
    return gradients(model)


def accumulated(batches: list[Batch]) -> Gradients:
    """One optimizer step over several batches, as docs/loader.md shows it."""
    model = PrefixModel()
    total = torch.stack([trained_tokens(batch) for batch in batches]).sum()
    for batch in batches:
        (summed_loss(model, batch) / total).backward()
    return gradients(model)


def assert_close(ours: Gradients, theirs: Gradients) -> None:
    """Equal but for the order of additions, in float64."""
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("batch_packs", [1, 3, 12])
@pytest.mark.parametrize("pad_to_multiple_of", [None, 32])
def test_packed_batches_accumulate_to_the_gradient_of_documents_alone(
    packed: Path, batch_packs: int, pad_to_multiple_of: int | None
) -> None:
    collator = VarlenCollator(pad_to_multiple_of=pad_to_multiple_of)
    loader = packed_dataloader(packed, batch_packs=batch_packs, shuffle=False, collator=collator)
    batches = [batch for _, batch in zip(range(12 // batch_packs), loader, strict=False)]
    assert_close(accumulated(batches), alone(runs.rows(packed)[:12]))


def test_a_blank_pack_adds_nothing(packed: Path) -> None:
    loader = packed_dataloader(packed, batch_packs=8, shuffle=False, drop_last=False)
    last = list(loader)[-1]
    assert last["cu_seq_lens_q"].diff().tolist()[-7:] == [32] * 7, "105 packs leave one for the last step"
    assert_close(accumulated([last]), alone(runs.rows(packed)[-1:]))


def test_a_mean_of_batch_means_would_be_another_gradient(packed: Path) -> None:
    # What averaging each batch by itself does to unevenly trained batches; were it the same, no count would be needed.
    batches = list(packed_dataloader(packed, batch_packs=1, shuffle=False))[:12]
    model = PrefixModel()
    for batch in batches:
        (summed_loss(model, batch) / trained_tokens(batch) / len(batches)).backward()
    means = gradients(model)
    right = alone(runs.rows(packed)[:12])
    assert (
        max(float((one - other).abs().max() / other.abs().max()) for one, other in zip(means, right, strict=True))
        > 0.01
    )
