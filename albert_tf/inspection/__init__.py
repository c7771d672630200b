"""Looks inside trained models: layers, attention. Training needs none of it."""
