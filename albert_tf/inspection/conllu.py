"""Reads Universal Dependencies' CoNLL-U: words and one of their columns."""

from __future__ import annotations

from collections.abc import Iterator

from albert_tf import files
from albert_tf.text_files import tab_cells, utf8_lines

# The columns of a word, in order. Source: universaldependencies.org/format.html.
COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
# What stands in a column of a word that has nothing there, as most have in some.
NOTHING = "_"


def sentences(path: str, column: str) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yields the words of each sentence, and what stands in a column for each, perhaps NOTHING.

    Comments, and tokens that are not syntactic words (ranges such as 3-4, and empty nodes such as
    3.1), are skipped.

    Args:
      path: A CoNLL-U file, in UTF-8.
      column: One of COLUMNS.

    Raises:
      OSError: If there is no such file.
      ValueError: If a line doesn't have ten columns, no word has anything in this one, or there is
        no sentence. The message names the file.
    """
    files.check_file(path)
    words: list[str] = []
    values: list[str] = []
    empty = valueless = True
    for number, line in utf8_lines(path):
        cells = tab_cells(line, f"{path}:{number}")
        if cells == [""]:
            if words:
                yield tuple(words), tuple(values)
            words, values = [], []
        elif not line.startswith("#"):
            if len(cells) != len(COLUMNS):
                raise ValueError(
                    f"{path}:{number}: expected the {len(COLUMNS)} columns of CoNLL-U, between "
                    f"tabs, got {len(cells)}: {line.strip()[:60]!r}"
                )
            if cells[0].isdecimal():
                words.append(cells[1])
                values.append(cells[COLUMNS.index(column)])
                empty, valueless = False, valueless and values[-1] == NOTHING
    if words:
        yield tuple(words), tuple(values)
    if empty:
        raise ValueError(f"{path} has no sentences")
    if valueless:
        raise ValueError(
            f"{path}: no word has anything in the column {column}: name another `column`"
        )
