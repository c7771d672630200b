"""Lowers train steps for TPU and compiles them ahead of time, on a machine that has none."""
