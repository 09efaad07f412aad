"""An epoch of a packed dataset in one process: packtool's loader against `datasets` and TRL's padding-free collator.

All take the same shards, shuffled, in batches of 8 packs, every batch flattened to one row, in a DataLoader without
workers. The peer gives positions and boundaries too, and a ``seq_idx`` more. It reads Arrow files that `datasets` made
of the shards before, which has a line of its own: packtool reads the Parquet within its time.
"""

from typing import Any

from tests.bench.end_to_end import run_packtool
from tests.bench.measuring import Run, Stopwatch, Timing, run_function, take_turns
from tests.bench.report import Goal, Line
from tests.bench.setting import Setting

_BATCH_PACKS = 8


def measure_loader(setting: Setting) -> list[Line]:
    """Of the dataset that the text measure packs; it is packed here where that did not run."""
    packed = setting.work / "packed-text"
    if not packed.exists():
        run_packtool(setting, setting.corpus.text, "bfd_split", packed.name)
    cache = setting.fresh("loader-cache")

    converted = run_function(convert_with_datasets, dataset=str(packed), cache=str(cache))

    def theirs(format: str | None) -> Run:
        return run_function(load_with_datasets, dataset=str(packed), cache=str(cache), format=format)

    timings = take_turns(
        {
            "packtool": lambda: run_function(load_with_packtool, dataset=str(packed)),
            "datasets + TRL's collator": lambda: theirs(None),
            "the same, rows as numpy": lambda: theirs("numpy"),
        },
        setting.rounds,
    )
    setting.fresh("loader-cache")
    ours, plain, numpy = timings.values()
    against = {
        "packtool": (_speed(ours) / _speed(plain), "faster", Goal(5)),
        "the same, rows as numpy": (_speed(numpy) / _speed(ours), "packtool's speed", None),
    }
    return [
        *(
            Line("an epoch", name, timing, f"{_speed(timing) / 1e6:.1f} Mtok/s", None, *against.get(name, ()))
            for name, timing in timings.items()
        ),
        Line("before the first", "datasets, Parquet to Arrow", Timing((converted,))),
    ]


def _speed(timing: Timing) -> float:
    """Tokens a second: the packs that the end of an epoch leaves out need not be the same."""
    return float(timing.facts["tokens"] / timing.seconds)


# --- the contestants -----------------------------------------------------------------------------------------


def load_with_packtool(dataset: str) -> dict[str, Any]:
    """Open it, and take every batch."""
    from packtool.torch import packed_dataloader

    with Stopwatch() as watch:
        tokens = segments = 0
        for batch in packed_dataloader(dataset, batch_packs=_BATCH_PACKS, rank=0, world_size=1):
            tokens += batch["input_ids"].numel()
            segments += len(batch["cu_seq_lens_q"]) - 1
    return {**watch.taken, "tokens": tokens, "segments": segments}


def convert_with_datasets(dataset: str, cache: str) -> dict[str, Any]:
    """The copy of the shards that `datasets` keeps and maps into memory; made once for a dataset."""
    from datasets import disable_progress_bars, load_dataset

    disable_progress_bars()
    with Stopwatch() as watch:
        rows = load_dataset(dataset, split="train", cache_dir=cache)
    return {**watch.taken, "packs": len(rows)}


def load_with_datasets(dataset: str, cache: str, format: str | None) -> dict[str, Any]:
    """The columns that the collator reads, memory-mapped, in the DataLoader a trainer makes."""
    from datasets import disable_progress_bars, load_dataset
    from torch.utils.data import DataLoader
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    disable_progress_bars()
    rows = load_dataset(dataset, split="train", cache_dir=cache)
    with Stopwatch() as watch:
        rows = rows.select_columns(["input_ids", "labels", "seq_lengths"]).with_format(format)
        collator = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
        tokens = segments = 0
        for batch in DataLoader(rows, _BATCH_PACKS, shuffle=True, drop_last=True, collate_fn=collator):
            tokens += batch["input_ids"].numel()
            segments += len(batch["cu_seq_lens_q"]) - 1
    return {**watch.taken, "tokens": tokens, "segments": segments}
