"""The tasks: each defines its model, losses and metrics."""
