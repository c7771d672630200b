"""The training loop: Trainer, step, optimizers, devices, evaluation. Knows Task, not the tasks."""
