"""Raw text -> ids: normalisation, SentencePiece, WordPiece, and one Vocabulary."""
