"""Kinds of answers of trained models: how each reads texts, and what outputs mean, in NumPy."""
