"""Where a trained model answers: how each kind reads texts, and what its outputs mean, in NumPy."""
