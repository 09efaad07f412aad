"""The dataset card: lists the exact shards, so that ``datasets.load_dataset(FOLDER)`` loads all of them or fails."""

from packtool.manifest import REJECTS_NAME, ShardEntry


def dataset_card(shards: tuple[ShardEntry, ...], max_length: int, strategy: str, padded: bool) -> str:
    """The text of the card.

    Args:
        shards: every shard, in order.
        max_length: tokens in a pack at most.
        strategy: how documents were packed.
        padded: whether every pack has exactly max_length tokens.
    """
    packs = sum(shard.packs for shard in shards)
    tokens = sum(shard.tokens for shard in shards)
    length = "exactly" if padded else "at most"
    head = card_head(tuple(shard.name for shard in shards))
    return f"""{head}
# Packed dataset

{packs:,} packs of {length} {max_length:,} tokens, {tokens:,} tokens in all, packed by packtool with `{strategy}`.

| column | what it holds |
| --- | --- |
| `input_ids` | the tokens of a pack |
| `labels` | not shifted: the token where it carries loss, else -100 |
| `position_ids` | 0, 1, 2, ... anew for every segment |
| `seq_lengths` | the length of each segment: the only truth about boundaries |
| `doc_ids` | which document each segment is of (-1: padding) |
| `doc_offsets` | where in its document each segment begins |

`manifest.json` says what the data was made from and with which options; `{REJECTS_NAME}` lists every record,
document or piece that is not in the packs, and why. Check the whole folder with `packtool verify`.

```python
from datasets import load_dataset

train = load_dataset("THIS_FOLDER", split="train")
```

**The rows are packed already.** A trainer that is not told so trains across documents without an error. TRL:
`SFTConfig(packing=True, packing_strategy="bfd", dataset_kwargs={{"skip_prepare_dataset": True}},
per_device_train_batch_size=1)`. Anywhere else: one pack a row, boundaries from `seq_lengths`, no `attention_mask`, and
labels as they are, not shifted. `packtool.torch` gives batches with `cu_seqlens`.
"""


def card_head(names: tuple[str, ...]) -> str:
    """What ``datasets`` reads of the card: that the shards ``names`` are the split ``train``, and all there is."""
    paths = "".join(f"    - {name}\n" for name in names)
    return f"---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path:\n{paths}---\n"
