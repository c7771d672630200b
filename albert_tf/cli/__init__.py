"""The scripts of training: flags -> checks, a task, a Trainer."""
