"""Everything on disk: files, checkpoints, and what TensorFlow's formats are made of."""
