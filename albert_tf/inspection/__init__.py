"""Looks inside trained models: layers, attention, agreement, probes. Training needs none of it."""
