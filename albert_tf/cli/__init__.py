"""The training scripts: flags -> checks, a task, a Trainer."""
