"""Ids -> TFRecord files -> batches: the content, masking, writing and reading of records."""
