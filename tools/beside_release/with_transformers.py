"""Fine-tunes by transformers' Trainer, with the settings of docs/from_other_libraries.md.

The scripts' flags: `python with_transformers.py --output_dir=out --task_name=mrpc ...`.
"""

from __future__ import annotations

import argparse
from typing import Any

import datasets
import torch
import transformers

from albert_tf.tasks import glue

# Those of the release's AdamW, which has no bias correction.
BETAS, EPSILON, WEIGHT_DECAY = (0.9, 0.999), 1e-6, 0.01


class ReleaseSteps(transformers.Trainer):
    """Takes the release's steps: its warm-up, and AdamW without bias correction."""

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        warmup = self.args.warmup_steps

        def factor(step: int) -> float:
            # What the corrections of both moments multiply a step by.
            first, second = (1 - beta ** (step + 1) for beta in BETAS)
            rate = step / warmup if step < warmup else 1 - step / num_training_steps
            return rate * first / second**0.5

        made = torch.optim.lr_scheduler.LambdaLR(optimizer or self.optimizer, factor)
        self.lr_scheduler = made
        return made


def main() -> None:
    """Trains, and saves the model as it is after the last step."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in ("output_dir", "task_name", "data_dir", "init_checkpoint"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("max_seq_length", "train_batch_size", "train_step", "warmup_step", "random_seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--learning_rate", type=float, required=True)
    parser.add_argument("--bias_correction", choices=("True", "False"), required=True)
    args = parser.parse_args()

    transformers.set_seed(args.random_seed)  # The new head's weights, too.
    labels = glue.GLUE_TASKS[args.task_name].labels
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.init_checkpoint)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        args.init_checkpoint, id2label=dict(enumerate(labels))
    )
    examples = glue.read_glue(args.task_name, args.data_dir, "train")
    rows = [
        {
            **tokenizer(
                example.text_a,
                example.text_b,
                truncation=True,
                max_length=args.max_seq_length,
                padding="max_length",
            ),
            "label": example.label,
        }
        for example in examples
    ]
    trainer = (transformers.Trainer if args.bias_correction == "True" else ReleaseSteps)(
        model,
        transformers.TrainingArguments(
            args.output_dir,
            max_steps=args.train_step,
            warmup_steps=args.warmup_step,
            learning_rate=args.learning_rate,
            per_device_train_batch_size=args.train_batch_size,
            weight_decay=WEIGHT_DECAY,
            adam_epsilon=EPSILON,
            seed=args.random_seed,
            save_strategy="no",
            report_to="none",
            logging_steps=50,
        ),
        train_dataset=datasets.Dataset.from_list(rows),
    )
    trainer.train()
    trainer.save_model(args.output_dir)


if __name__ == "__main__":
    main()
