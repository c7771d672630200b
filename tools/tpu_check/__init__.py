"""Lowers train steps for TPU and compiles them ahead of time, without a TPU."""
