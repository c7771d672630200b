"""Pre-training records and vocabularies from raw text: the code behind the scripts in data/."""
