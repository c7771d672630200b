"""Looks inside trained models: their layers, attention and agreement. No part of training."""
