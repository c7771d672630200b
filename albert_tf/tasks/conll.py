"""Sentences of tagged words from CoNLL's columns, CoNLL-U, JSON Lines and .parquet files."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from absl import logging

from albert_tf.answers.tag import OUTSIDE, are_entities, tag_parts
from albert_tf.storage import files, parquet_files
from albert_tf.storage.text_files import JSON_LINES, json_member
from albert_tf.tasks import spans, table
from albert_tf.tasks.table import TableSettings
from albert_tf.tasks.tag_columns import (
    DEFAULTS,
    LIKE_ENTITY,
    Sentence,
    read_columns,
)

# No tag can contain one of these.
BETWEEN_CELLS = re.compile("[ \t\r\n]")
# Keys of words, of tags and of spans in JSON Lines and .parquet.
_TOKENS, _LABELS = ("tokens", "words"), ("labels", "ner_tags", "tags")
_SPANS = ("label", "labels", "entities", "spans")
# Tags of entities in BIOES, BILOU or BMES, whose letter precedes the type or follows it.
_SCHEMES = (
    re.compile(r"(?P<letter>[BIESLUMW])[-_](?P<type>.+)", re.DOTALL | re.IGNORECASE),
    re.compile(r"(?P<type>.+)[-_](?P<letter>[BIESLUMW])", re.DOTALL | re.IGNORECASE),
)
_IN_BIOES = str.maketrans("MLUW", "IESS")
# OntoNotes' notation: (PER) is an entity of one word, (PER* begins one, *) ends it.
_BRACKETS = re.compile(r"\([^()*]+\)|(\([^()*]+)?\*\)?")
# Maximum number of tags that a log line counts.
_MOST_SAID = 30


@dataclasses.dataclass(frozen=True)
class TokenExample:
    """A sentence."""

    guid: str  # Number of the line on which it begins.
    words: tuple[str, ...]
    labels: tuple[int, ...] | None  # The ids of the words' tags; None if unknown.


def order_tags(counts: Mapping[str, int], path: str) -> tuple[str, ...]:
    """Returns the tags to train on, in the order of their ids.

    The first is O or, for plain tags without O, the most frequent one. Entity tags in any scheme
    become BIOES tags. Each type of entity gets a tag for every prefix in the file, because a small
    file may lack some tags of a rare type.

    Args:
      counts: How often each tag occurs.
      path: The file that has the tags, for messages.
    """
    spelt = _spelt(counts)
    others = [tag for tag in counts if tag.upper() != OUTSIDE]
    found = [*map(spelt.get, others)]
    # Without O or a B tag, such letters are no entity scheme, as in noun_s and verb_s.
    says_more = len(others) < len(counts) or any(each and each[0] == "B" for each in found)
    # Entities: every prefix with every type.
    if are_entities(others) or (others and None not in found and says_more):
        prefixes, types = zip(*(tag_parts(each or "") for each in found), strict=True)
        if len({each.casefold() for each in types}) < len({*types}):
            names = ", ".join(sorted({*types}))
            logging.warning("%s: types that differ by case alone are others: %s", path, names)
        tags = {f"{prefix}-{entity}" for prefix in set(prefixes) for entity in set(types)}
        return (OUTSIDE, *sorted(tags))
    if len(counts) < 2:
        raise ValueError(
            f"{path}: expected several labels, got only {next(iter(counts))!r}: `label_column` "
            "may name another column"
        )
    odd = [tag for tag in others if not are_entities([tag])]
    if any(map(LIKE_ENTITY.fullmatch, others)):
        logging.warning(
            "%s: the labels are read as plain tags, not as entities: those would be O, or a type "
            "with a prefix such as B-, I-, E- or S-, unlike %s",
            *(path, min(odd, key=lambda tag: tag in spelt)),
        )
    # The first plain tag is the default, which words without pieces get.
    first = OUTSIDE if OUTSIDE in counts else max(counts, key=counts.__getitem__)
    return (first, *sorted(counts.keys() - {first}))


def _spelt(tags: Collection[str]) -> dict[str, str]:
    """Returns the BIOES spelling of each tag that is O or an entity tag in some scheme."""
    found = [{tag: m for tag in tags if (m := form.fullmatch(tag))} for form in _SCHEMES]
    # Take the order, letter first or type first, that matches more of the file's tags.
    spelt = {
        tag: f"{match['letter'].upper().translate(_IN_BIOES)}-{match['type']}"
        for tag, match in max(found, key=len).items()
    }
    return {**spelt, **{tag: OUTSIDE for tag in tags if tag.upper() == OUTSIDE}}


def find_tags(path: str, settings: TableSettings = DEFAULTS) -> tuple[str, ...]:
    """Returns the tags of a training file; see order_tags and read_sentences."""
    _, sentences = _sentences(path, True, settings)
    # Each of `label_names` is a tag, even if no word has it.
    counts = Counter(dict.fromkeys(settings.label_names, 0))
    counts.update(tag for each in sentences for tag in each.tags)
    return order_tags(counts, path)


def read_sentences(
    path: str,
    classes: Sequence[str],
    labelled: bool = True,
    settings: TableSettings = DEFAULTS,
) -> list[TokenExample]:
    """Reads sentences with tagged words, and logs in one line what was found.

    Args:
      path: A file in UTF-8. In .jsonl (or .json) each line is an object with `tokens` and
        `labels`, or with a text and spans of characters, and .parquet has these columns. Any other
        file has CoNLL's columns: a word per line, and an empty line between sentences. Commas
        separate columns in .csv, else tabs in lines that have one, else spaces; see _columns.
        Comments before a sentence, -DOCSTART- lines and a header are skipped.
      classes: The tags in the order of their ids.
      labelled: Whether the file must have tags; if not, all words have one or none has.
      settings: `text_column` and `label_column` may name keys, or columns by header or number;
        `label_names` are the tags that ids stand for.
    """
    found, sentences = _sentences(path, labelled, settings)
    ids = {tag: i for i, tag in enumerate(classes)}
    counts = Counter(tag for each in sentences for tag in each.tags or ())
    # Entity tags are converted to BIOES; plain tags keep their spelling.
    spelt = _spelt(counts) if are_entities(classes) else {}
    examples = []
    for sentence in sentences:
        labels = None
        if sentence.tags is not None:
            for line, tag in zip(sentence.lines, sentence.tags, strict=True):
                if spelt.get(tag, tag) not in ids:
                    raise ValueError(
                        f"{path}:{line}: label {tag!r} is not one of those trained on: "
                        f"{', '.join(classes)}"
                    )
            labels = tuple(ids[spelt.get(tag, tag)] for tag in sentence.tags)
        # The line of its first word is the sentence's id.
        examples.append(TokenExample(str(sentence.lines[0]), tuple(sentence.words), labels))
    said = ", ".join(f"{tag} {count}" for tag, count in counts.most_common(_MOST_SAID))
    scheme = "tags of entities" if are_entities(classes) else "plain tags"
    what = f"{len(counts)} {scheme}: {said}" if counts else "no tags"
    logging.info("%s: %d sentences, %s; %s", path, len(examples), found, what)
    return examples


def _sentences(path: str, labelled: bool, settings: TableSettings) -> tuple[str, list[Sentence]]:
    """Returns where words and tags were found, and all sentences."""
    files.check_file(path)
    name = path.lower()
    has_objects = name.endswith((*JSON_LINES, parquet_files.ENDING))
    found, sentences = (_of_objects if has_objects else read_columns)(path, settings)
    if not sentences:
        raise ValueError(f"{path} has no sentences")
    # The first sentence decides whether all have tags.
    first = sentences[0]
    for sentence in sentences:
        line, has_tags = sentence.lines[0], sentence.tags is not None
        if labelled and not has_tags:
            raise ValueError(
                f"{path}:{line}: {sentence.words[0]!r} has no label ({found}): `label_column` may "
                f"name another place than {settings.label_column!r}"
            )
        if has_tags != (first.tags is not None):
            raise ValueError(
                f"{path}:{line}: the sentence {'has' if has_tags else 'lacks'} labels, unlike the "
                f"one in line {first.lines[0]}: label all sentences or none"
            )

    # OntoNotes' brackets around entities become tags, and ids become the tags' names.
    counts = Counter(tag for each in sentences for tag in each.tags or ())
    if 2 * sum(counts[tag] for tag in counts if _BRACKETS.fullmatch(tag)) > counts.total():
        sentences = [dataclasses.replace(x, tags=_of_brackets(x, path)) for x in sentences]
    names = settings.label_names
    of_ids = {**{name: name for name in names}, **{str(i): name for i, name in enumerate(names)}}
    for each in sentences:
        for i, tag in enumerate(each.tags or ()):
            each.tags[i] = of_ids.get(tag, "" if names else tag)
            # Predictions are written in CoNLL's columns, where a space would begin another cell.
            if not each.tags[i] or BETWEEN_CELLS.search(each.tags[i]):
                among = f" among `label_names` ({', '.join(names)}) or their numbers" * bool(names)
                raise ValueError(
                    f"{path}:{each.lines[i]}: expected labels without spaces, tabs and line ends"
                    f"{among}, got {tag!r}"
                )
    return found, sentences


def _of_brackets(sentence: Sentence, path: str) -> list[str]:
    """Returns tags for OntoNotes' brackets: (PER* begins an entity, and *) ends it."""
    tags, inside = [], ""
    for line, cell in zip(sentence.lines, sentence.tags or (), strict=True):
        name = cell.strip("(*)")
        if not _BRACKETS.fullmatch(cell) or (inside if name else cell == "*)" and not inside):
            raise ValueError(
                f"{path}:{line}: {cell!r} is no bracket that begins an entity outside of others, "
                "such as (PER*, or ends one"
            )
        tags.append(f"B-{name}" if name else f"I-{inside}" if inside else OUTSIDE)
        inside = "" if cell.endswith(")") else name or inside
    if inside:
        raise ValueError(f"{path}:{line}: no bracket ends the entity {inside} in its sentence")
    return tags


def _of_objects(path: str, settings: TableSettings) -> tuple[str, list[Sentence]]:
    stored = table.stored_class_names(path)
    # Use the keys that the settings name or, by default, those that are present.
    text, label = settings.text_column, settings.label_column
    word_keys = (*_TOKENS, text) if text == DEFAULTS.text_column else (text,)
    is_default = label == DEFAULTS.label_column
    label_keys = [_LABELS, _SPANS] if is_default else [(label,), (label,)]
    # `label_names` takes precedence over the names of ids in the file.
    ids = [*map(str, range(len(settings.label_names)))]
    found, sentences = "", []
    optional = [*dict.fromkeys(itertools.chain(word_keys, *label_keys))]
    for number, row in table.table_records(path, (), optional):
        where = f"{path}:{number}"
        key = next((x for x in word_keys if x in row), "")
        if not key:
            raise ValueError(
                f"{where}: expected {' or '.join(map(repr, word_keys))}: a list of words, or a "
                "text with spans as of doccano or of Label Studio's JSON-MIN"
            )
        has_spans = key == text and isinstance(row.get(key), str)
        present = [x for x in label_keys[has_spans] if row.get(x) is not None]
        present = present or [label] * isinstance(row.get(label), list)
        if any(row[x] != row[present[0]] for x in present):
            both = " and ".join(map(repr, present))
            raise ValueError(f"{where}: {both} differ: `label_column` says which is meant")
        given = json_member(row, present[0], where, list) if present else None
        if has_spans:
            words, labels = spans.tag_words(row[key], given, where)
        else:
            words = _strings(row, key, where)
            names = ids or stored.get(present[0], ()) if present else ()
            labels = _strings(row, present[0], where, names) if present else None
        if not words:
            raise ValueError(f"{where}: there are no tokens")
        if labels is not None and len(labels) != len(words):
            raise ValueError(
                f"{where}: expected a label for each of {len(words)} tokens, got {len(labels)}"
            )
        found = found or f"words in {key!r}, tags in {present[0] if present else None!r}"
        sentences.append(Sentence([number] * len(words), words, labels))
    return found, sentences


def _strings(row: object, key: str, where: str, names: Sequence[str] = ()) -> list[str]:
    """Returns a list of strings; ids are replaced by the names that they stand for."""
    known = {str(i): name for i, name in enumerate(names)}
    values = [known.get(str(each), each) for each in json_member(row, key, where, list)]
    for i, value in enumerate(values):
        if not isinstance(value, str) or not value:
            more = " (`label_names` names ids)" if type(value) is int else ""
            raise ValueError(
                f"{where}: expected strings in {key!r}, got {value!r} at index {i}{more}"
            )
    return values
