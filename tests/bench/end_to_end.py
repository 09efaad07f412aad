"""From JSONL to packed Parquet: packtool, and what people run today: `datasets`, a tokenizer, TRL's packing.

The peer is made strong: the tokenizer's own batch call rather than a wrapper around it, no labels or
positions stored, no fsync, and the better of one process with threads and two processes.
"""

import os
from pathlib import Path
from typing import Any

from tests.bench.measuring import Run, Stopwatch, Timing, run_function, take_turns
from tests.bench.report import Goal, Line
from tests.bench.setting import MAX_LENGTH, Setting

EOS_ID = 1


def measure_text(setting: Setting) -> list[Line]:
    """Texts, ``bfd_split``; leaves the packed dataset in the folder ``packed-text``."""
    return _measure(setting, "text", setting.corpus.text, "bfd_split", Goal(15))


def measure_instructions(setting: Setting) -> list[Line]:
    """Prompts and completions, ``bfd`` with ``truncate``, where only the completion trains."""
    return _measure(setting, "instructions", setting.corpus.instructions, "bfd", None)


def run_packtool(setting: Setting, source: Path, strategy: str, output: str) -> Run:
    """Pack ``source`` into the folder ``output``, which is made anew."""
    return run_function(
        pack_with_packtool,
        source=str(source),
        tokenizer=str(setting.tokenizer),
        output=str(setting.fresh(output)),
        strategy=strategy,
        workers=setting.workers,
    )


def _measure(setting: Setting, what: str, source: Path, strategy: str, goal: Goal | None) -> list[Line]:
    def ours() -> Run:
        return run_packtool(setting, source, strategy, f"packed-{what}")

    def theirs(processes: int) -> Run:
        return run_function(
            pack_with_trl,
            source=str(source),
            tokenizer=str(setting.tokenizer),
            folder=str(setting.fresh("peer")),
            strategy=strategy,
            processes=processes,
        )

    # The first run with each number of processes says which is the better; that run counts, and it goes on.
    tried = {processes: theirs(processes) for processes in sorted({1, setting.workers})}
    best = min(tried, key=lambda processes: tried[processes].seconds)
    turns = take_turns({"packtool": ours, "peer": lambda: theirs(best)}, setting.rounds - 1)
    timings = {
        "packtool": Timing((*turns["packtool"].runs, ours())),
        "peer": Timing((tried[best], *turns["peer"].runs)),
    }
    setting.fresh("peer")
    ratio = timings["peer"].seconds / timings["packtool"].seconds
    size = source.stat().st_size
    name = f"datasets + tokenizers + TRL, num_proc {best}"
    return [
        Line(what, "packtool", timings["packtool"], _rate(size, timings["packtool"]), _fill(timings["packtool"]),
             ratio, "faster", goal),
        Line(what, name, timings["peer"], _rate(size, timings["peer"]), _fill(timings["peer"])),
        *(
            Line(what, f"the same, num_proc {processes}", Timing((run,)), _rate(size, Timing((run,))))
            for processes, run in tried.items()
            if processes != best
        ),
    ]  # fmt: skip


def _rate(size: int, timing: Timing) -> str:
    return f"{size / 1e6 / timing.seconds:.1f} MB/s"


def _fill(timing: Timing) -> float:
    return float(timing.facts["fill"])


# --- the contestants, each in a process of its own -----------------------------------------------------------


def pack_with_packtool(source: str, tokenizer: str, output: str, strategy: str, workers: int) -> dict[str, Any]:
    """What `packtool pack` does, once everything is imported; workers are started within the time."""
    import json

    from packtool import PackConfig, stats
    from packtool.run import pack

    overlong = "truncate" if strategy == "bfd" else "auto"
    config = PackConfig.checked(
        {
            "sources": [source],
            "output": Path(output),
            "tokenizer": tokenizer,
            "max_length": MAX_LENGTH,
            "strategy": strategy,
            "overlong": overlong,
            "workers": workers,
        }
    )
    with Stopwatch() as watch:
        pack(config)
    found = stats(output)
    return {
        **watch.taken,
        "fill": found.fill,
        "tokens": found.tokens,
        "packs": found.packs,
        "lower_bound_packs": found.lower_bound_packs,
        "stages": json.loads((Path(output) / "run.json").read_bytes())["seconds"],
    }


def pack_with_trl(source: str, tokenizer: str, folder: str, strategy: str, processes: int) -> dict[str, Any]:
    """`datasets` loads, `tokenizers` encodes in a map, TRL packs in a map, `datasets` writes Parquet."""
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if processes == 1 else "false"
    from datasets import disable_progress_bars, load_dataset
    from tokenizers import Tokenizer
    from trl import pack_dataset

    disable_progress_bars()
    in_processes = None if processes == 1 else processes

    def encoded(texts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in encoder.encode_batch_fast(texts, add_special_tokens=False)]

    def tokenize(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        if "text" in batch:
            return {"input_ids": [[*ids, EOS_ID] for ids in encoded(batch["text"])]}
        # As SFTTrainer does: the completion begins behind as many tokens as the prompt has alone.
        prompts = [len(ids) for ids in encoded(batch["prompt"])]
        whole = [
            [*ids, EOS_ID]
            for ids in encoded([a + b for a, b in zip(batch["prompt"], batch["completion"], strict=True)])
        ]
        labels = [[-100] * n + ids[n:] for n, ids in zip(prompts, whole, strict=True)]
        return {"input_ids": whole, "labels": labels}

    with Stopwatch() as watch:
        encoder = Tokenizer.from_file(f"{tokenizer}/tokenizer.json")
        encoder.no_truncation()
        encoder.no_padding()
        rows = load_dataset("json", data_files=source, split="train", cache_dir=f"{folder}/cache")
        tokenized = rows.map(tokenize, batched=True, remove_columns=rows.column_names, num_proc=in_processes)
        packed = pack_dataset(tokenized, MAX_LENGTH, strategy, map_kwargs={"num_proc": in_processes})
        packed.to_parquet(f"{folder}/packed.parquet")
    return {**watch.taken, **trl_result(packed)}


def trl_result(packed: Any) -> dict[str, Any]:
    """Packs, tokens and fill of a dataset that TRL packed."""
    import pyarrow.compute as pc

    tokens = sum(pc.sum(pc.list_value_length(chunk)).as_py() or 0 for chunk in packed.data.column("input_ids").chunks)
    return {"tokens": tokens, "packs": len(packed), "fill": tokens / (len(packed) * MAX_LENGTH)}
