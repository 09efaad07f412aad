"""Fine-tune a transformers model on a packed dataset with its Trainer.

    python docs/examples/train_transformers.py packed --model path/to/model --output trained

Add ``--attention flash_attention_2`` where flash-attn is installed. Check the model first:
``packtool verify packed --model path/to/model``.
"""

import argparse

from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from packtool.torch import PackedDataset, VarlenCollator


def trainer(options: argparse.Namespace) -> Trainer:
    """A Trainer that gets several packs in one row, with the boundaries of all their documents."""
    model = AutoModelForCausalLM.from_pretrained(options.model, attn_implementation=options.attention)
    model.config.use_cache = False  # with a cache, models do not look at position_ids
    arguments = TrainingArguments(
        output_dir=options.output,
        max_steps=options.steps,
        per_device_train_batch_size=options.batch_packs,
        gradient_accumulation_steps=options.accumulate,
        learning_rate=options.lr,
        remove_unused_columns=False,  # it would drop seq_lengths before the collator sees them
        dataloader_num_workers=options.workers,
        use_cpu=options.cpu,
        bf16=not options.cpu,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        seed=options.seed,
    )
    # Map-style, so that accelerate does not slice the batch's tensors apart (dispatch_batches).
    return Trainer(
        model=model, args=arguments, train_dataset=PackedDataset(options.dataset), data_collator=VarlenCollator()
    )


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train on a packed dataset with transformers.Trainer.")
    parser.add_argument("dataset", help="folder that packtool pack made")
    parser.add_argument("--model", required=True, help="a local folder, or a name on the hub")
    parser.add_argument("--output", default="trained", help="folder")
    parser.add_argument("--attention", default="sdpa", help="sdpa, eager, flex_attention, flash_attention_2")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-packs", type=int, default=2, help="packs in a row")
    parser.add_argument("--accumulate", type=int, default=1, help="rows in an optimizer step")
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cpu", action="store_true")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    options = parse()
    run = trainer(options)
    run.train()
    run.save_model(options.output)
