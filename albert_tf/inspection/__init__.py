"""Looks inside trained models: layers, attention, agreement, probes. No part of training."""
