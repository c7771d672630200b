"""Pre-training records and vocabularies from raw text: what the scripts in data/ run."""
