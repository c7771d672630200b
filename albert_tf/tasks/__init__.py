"""The tasks: each says what its model, losses and metrics are."""
