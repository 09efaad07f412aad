"""A language model whose every logit depends on all earlier tokens of its segment, and on nothing else."""

import torch
from torch import nn

from packtool.torch.collator import Batch


class PrefixModel(nn.Module):
    """Embeds, takes the mean of the segment so far, and projects to the vocabulary."""

    def __init__(self, vocabulary: int = 256, width: int = 8) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.tokens = nn.Parameter(torch.randn(vocabulary, width, generator=generator, dtype=torch.float64))
        self.places = nn.Parameter(torch.randn(64, width, generator=generator, dtype=torch.float64))
        self.head = nn.Parameter(torch.randn(width, vocabulary, generator=generator, dtype=torch.float64))

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Logits [T, vocabulary] of a flattened row."""
        hidden = self.tokens[input_ids] + self.places[position_ids]
        means = [
            segment.cumsum(0) / torch.arange(1, len(segment) + 1)[:, None] for segment in hidden.split(lengths.tolist())
        ]
        return torch.cat(means).tanh() @ self.head


def summed_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    """The loss of every trained token of a batch, added up: labels are not shifted, so each is predicted before."""
    ids, positions, labels, cu = (batch[name] for name in ("input_ids", "position_ids", "labels", "cu_seq_lens_q"))
    assert isinstance(ids, torch.Tensor)
    assert isinstance(positions, torch.Tensor)
    assert isinstance(labels, torch.Tensor)
    assert isinstance(cu, torch.Tensor)
    logits = model(ids[0], positions[0], cu.diff())
    return nn.functional.cross_entropy(logits[:-1], labels[0, 1:], ignore_index=-100, reduction="sum")


def trained_tokens(batch: Batch) -> torch.Tensor:
    """How many tokens of a batch carry loss."""
    labels = batch["labels"]
    assert isinstance(labels, torch.Tensor)
    return (labels != -100).sum()
