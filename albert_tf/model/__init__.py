"""ALBERT: layers, the encoder that applies one block again and again, heads, whole models."""
