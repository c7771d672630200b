"""Fine-tunes by transformers' Trainer, with the settings of docs/from_other_libraries.md.

finetuning.py starts it, with the scripts' flags, each of which must be given: --task_name=mrpc ...
"""

from __future__ import annotations

import sys
from typing import Any

import datasets
import torch
import transformers

from albert_tf.tasks import glue

BETAS = (0.9, 0.999)


class ReleaseSteps(transformers.Trainer):
    """Takes the release's steps: its warm-up, and AdamW without bias correction."""

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        warmup = self.args.warmup_steps

        def factor(step: int) -> float:
            rate = step / warmup if step < warmup else 1 - step / num_training_steps
            # Bias correction divides the moments by these.
            first, second = (1 - beta ** (step + 1) for beta in BETAS)
            return rate * first / second**0.5

        made = torch.optim.lr_scheduler.LambdaLR(optimizer or self.optimizer, factor)
        self.lr_scheduler = made
        return made


def main() -> None:
    """Trains, and saves the model after the last step."""
    flags = dict(each.removeprefix("--").split("=", 1) for each in sys.argv[1:])
    seed, length = int(flags["random_seed"]), int(flags["max_seq_length"])
    transformers.set_seed(seed)  # For the new head's weights, too.
    tokenizer = transformers.AutoTokenizer.from_pretrained(flags["init_checkpoint"])
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        flags["init_checkpoint"],
        id2label=dict(enumerate(glue.GLUE_TASKS[flags["task_name"]].labels)),
    )
    examples = glue.read_glue(flags["task_name"], flags["data_dir"], "train")
    how = {"truncation": True, "padding": "max_length", "max_length": length}
    rows = [{**tokenizer(e.text_a, e.text_b, **how), "label": e.label} for e in examples]
    arguments = transformers.TrainingArguments(
        flags["output_dir"],
        max_steps=int(flags["train_step"]),
        warmup_steps=int(flags["warmup_step"]),
        learning_rate=float(flags["learning_rate"]),
        per_device_train_batch_size=int(flags["train_batch_size"]),
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        adam_epsilon=1e-6,
        weight_decay=0.01,
        seed=seed,
        save_strategy="no",
        report_to="none",
    )
    kind = transformers.Trainer if flags["bias_correction"] == "True" else ReleaseSteps
    trainer = kind(model, arguments, train_dataset=datasets.Dataset.from_list(rows))
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
