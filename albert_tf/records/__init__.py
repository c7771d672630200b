"""Ids -> TFRecord files -> batches: what a record holds, how it is masked, written and read."""
