"""Fine-tune a transformers model on a packed dataset with TRL's SFTTrainer.

    python docs/examples/train_trl.py packed --model path/to/model --output trained

TRL must be told that the rows are packed already; with its defaults it trains across documents, without an error.
"""

import argparse
from pathlib import Path

from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer


def trainer(options: argparse.Namespace) -> SFTTrainer:
    """An SFTTrainer that takes the packs as they are."""
    columns = ["input_ids", "labels", "seq_lengths"]
    if options.streaming:
        train = load_dataset(options.dataset, split="train", streaming=True).select_columns(columns)
    else:
        train = load_dataset(options.dataset, split="train", columns=columns)
    arguments = SFTConfig(
        output_dir=options.output,
        max_steps=options.steps,
        packing=True,
        packing_strategy="bfd",  # makes positions from seq_lengths
        dataset_kwargs={"skip_prepare_dataset": True},  # without it, everything is packed again
        per_device_train_batch_size=1,  # packs in a row
        gradient_accumulation_steps=options.accumulate,
        learning_rate=options.lr,
        use_cpu=options.cpu,
        bf16=not options.cpu,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        seed=options.seed,
    )
    model = AutoModelForCausalLM.from_pretrained(options.model, attn_implementation=options.attention)
    tokenizer = AutoTokenizer.from_pretrained(Path(options.dataset) / "tokenizer")
    return SFTTrainer(model=model, args=arguments, train_dataset=train, processing_class=tokenizer)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train on a packed dataset with trl.SFTTrainer.")
    parser.add_argument("dataset", help="folder that packtool pack made")
    parser.add_argument("--model", required=True, help="a local folder, or a name on the hub")
    parser.add_argument("--output", default="trained", help="folder")
    parser.add_argument("--attention", default="sdpa", help="sdpa, eager, flex_attention, flash_attention_2")
    parser.add_argument("--streaming", action="store_true", help="read the shards as they come")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--accumulate", type=int, default=1, help="packs in an optimizer step")
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cpu", action="store_true")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    options = parse()
    run = trainer(options)
    run.train()
    run.save_model(options.output)
