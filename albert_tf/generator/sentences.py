"""Splits running text into sentences."""

from __future__ import annotations

from collections.abc import Callable


def make_splitter(language: str) -> Callable[[str], list[str]]:
    """Returns the function that splits a paragraph into its sentences.

    Args:
        language: ISO 639 code; one that the library doesn't know gets general rules.

    Raises:
        ValueError: the library is not installed.
    """
    try:
        import sentencex
    except ImportError as error:
        raise ValueError(
            "the package 'sentencex', which splits text into sentences, is not installed: "
            "pip install 'albert_tf[data]', or give one sentence per line (input_format=lines)"
        ) from error

    def split(paragraph: str) -> list[str]:
        stripped = (sentence.strip() for sentence in sentencex.segment(language, paragraph))
        return [sentence for sentence in stripped if sentence]

    return split
