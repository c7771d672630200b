"""Tags of words: of entities (BIO, BIOES) or plain ones, as parts of speech."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

# The tag of words outside any entity.
OUTSIDE = "O"
# B begins an entity, I goes on with it; E ends one, S is a single word.
_ENTITY = re.compile(r"([BIES])-(.+)", re.DOTALL)
_BILOU = re.compile(r"[BILU]-.+", re.DOTALL)


def are_entities(tags: Sequence[str]) -> bool:
    """Whether tags mark entities: O, and B-, I-, E- or S- before a type; else they are plain."""
    others = [tag for tag in tags if tag != OUTSIDE]
    return bool(others) and all(_ENTITY.fullmatch(tag) for tag in others)


def parts(tag: str) -> tuple[str, str]:
    """Returns an entity's tag as B, I, E or S and its type; O has none."""
    match = _ENTITY.fullmatch(tag)
    return (match[1], match[2]) if match else (OUTSIDE, "")


def default(tags: Sequence[str]) -> int:
    """Returns the id of the tag of words without pieces: O, or if there is none the first tag's."""
    return tags.index(OUTSIDE) if OUTSIDE in tags else 0


def order(counts: Mapping[str, int], path: str) -> tuple[str, ...]:
    """Returns the tags to train on, in the order of their ids.

    O or, of plain tags, the most frequent one comes first. Types of entities get a tag for each of
    the prefixes that the file has: of a rare one it may lack some.

    Args:
      counts: How often each tag occurs.
      path: The file they are from, for messages.

    Raises:
      ValueError: If there are fewer than two, or if they are BILOU's.
    """
    others = [tag for tag in counts if tag != OUTSIDE]
    if any(tag[:2] in ("L-", "U-") for tag in others) and all(map(_BILOU.fullmatch, others)):
        raise ValueError(
            f"{path}: the labels {', '.join(sorted(others)[:4])}... follow the scheme BILOU: "
            "change it to BIOES, with E- for L- and S- for U-"
        )
    if are_entities(others):
        prefixes, types = zip(*map(parts, others), strict=True)
        found = {f"{prefix}-{kind}" for prefix in set(prefixes) for kind in set(types)}
        return (OUTSIDE, *sorted(found))
    if len(counts) < 2:
        raise ValueError(f"{path}: expected several labels, got only {next(iter(counts))!r}")
    first = OUTSIDE if OUTSIDE in counts else Counter(counts).most_common(1)[0][0]
    return (first, *sorted(counts.keys() - {first}))
