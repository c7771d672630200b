"""ALBERT: layers, the encoder that applies one block repeatedly, heads, and whole models.

Axis letters, here and everywhere: B batch, S sequence, P masked-LM predictions, V vocabulary,
E embedding, H hidden, N heads, D head size, I intermediate, C classes or choices, K top-k or
examples in a packed row.
"""
