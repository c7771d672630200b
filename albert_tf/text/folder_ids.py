"""Hugging Face's own ids: a tokenizer.json as a SentencePiece model that splits texts as it does.

All of its steps become the model's table of characters. The table's name, which readers of the
model look up in RULES, tells the rules that no such table can express.
"""

from __future__ import annotations

import functools
import io
import itertools
import json
import re
import tempfile
import unicodedata
from collections.abc import Mapping
from typing import Any

import sentencepiece

from albert_tf.storage.text_files import read_json_object
from albert_tf.text import fast_tokenizer
from albert_tf.text.sentence_piece import (
    END,
    FOLDER,
    RULES,
    ModelProto,
    Piece,
    read_model,
    without_digit_commas,
)
from albert_tf.text.tokenization import Tokenizer
from albert_tf.text.word_starts import SPACE_MARK

# Separates characters normalised in one call. Normalisation leaves private-use characters alone.
_APART = "\ue000"
# Code points without the private use area, surrogates, and planes in which nothing changes.
_CODES = (range(1, 0xD800), range(0xF900, 0x40000), range(0xE0000, 0xE1000))
# END becomes this piece, which every model has, and which no normalised text contains.
_CLOSE = "[CLS]"


def is_own(path: str) -> bool:
    """Whether a tokenizer.json splits texts by transformers' rules, not by the release's."""
    return fast_tokenizer.QUOTES[0] in _steps(read_json_object(path))


def read(path: str, config: Mapping[str, Any]) -> bytes:
    """Converts a tokenizer.json with its tokenizer_config.json to SentencePiece model content."""
    tokenizer = read_json_object(path)
    # transformers 5, which stores its backend, gives segment ids only if it was asked to.
    names = config.get("model_input_names") or ()
    has_segments = "backend" not in config or "token_type_ids" in names
    try:
        return _model(tokenizer, has_segments).SerializeToString()
    except ValueError as error:
        raise ValueError(
            f"{path}: `ids=folder` can't follow it ({error}): set `ids=release`"
        ) from None


def _model(tokenizer: Mapping[str, Any], has_segments: bool) -> Any:
    # In released models' files, and since version 5 in all, no piece stands for white space before
    # an added token, or at the end.
    splitter = fast_tokenizer.member(tokenizer, "pre_tokenizer")
    splitters = splitter.get("pretokenizers", [splitter])
    cuts_ends = isinstance(splitters, list) and splitters[:1] == [{"type": "WhitespaceSplit"}]
    if not (cuts_ends or splitters == [splitter]) or not _is_metaspace(splitters[-1]):
        raise ValueError("its pre_tokenizer puts no space before each word")
    found = ModelProto()
    vocab, unknown = fast_tokenizer.scored_pieces(fast_tokenizer.member(tokenizer, "model"))
    for i, (piece, score) in enumerate(vocab):
        # Words are split one by one, so no piece may span several.
        kind = Piece.UNUSED if SPACE_MARK in piece[1:] else Piece.NORMAL
        found.pieces.add(piece=piece, score=score, type=Piece.UNKNOWN if i == unknown else kind)
    found.normalizer_spec.name = RULES[cuts_ends + (cuts_ends and has_segments)]
    table = _table(json.dumps(_steps(tokenizer)), cuts_ends)
    found.normalizer_spec.precompiled_charsmap = table
    return found


def _is_metaspace(step: Any) -> bool:
    # Files from before 2024 have add_prefix_space.
    always = isinstance(step, dict) and step.get("prepend_scheme", "always") == "always"
    return always and step.get("type") == "Metaspace" and step.get("add_prefix_space", True)


def _steps(tokenizer: Mapping[str, Any]) -> list[Any]:
    return fast_tokenizer.steps_of(fast_tokenizer.member(tokenizer, "normalizer"))


@functools.cache
def _table(steps: str, cuts_ends: bool) -> bytes:
    """Returns what the steps of a normalizer make of single characters, and of two quotes."""
    characters = [chr(code) for code in itertools.chain(*_CODES)]
    text, rules = _APART + _APART.join(characters) + _APART, dict[str, str]()
    for step in json.loads(steps):
        if step in fast_tokenizer.QUOTES:
            rules[step["pattern"]["String"]] = step["content"]
        elif step != fast_tokenizer.ONE_SPACE:  # The model itself collapses runs of spaces.
            text = _changed(step, text)
    # Since version 5 any white space separates words.
    text = re.sub(r"\s", " ", text) if cuts_ends else text
    found = zip(characters, text.split(_APART)[1:-1], strict=True)
    rules |= {char: becomes for char, becomes in found if char != becomes} | {
        END: _CLOSE,
        SPACE_MARK: " ",
    }
    return _table_of(rules)


def _table_of(rules: Mapping[str, str]) -> bytes:
    # SentencePiece compiles tables only when it trains, so train a model of one letter.
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as file:
        codes = (["".join(f"{ord(c):X} " for c in text) for text in rule] for rule in rules.items())
        file.writelines(f"{before}\t{after}\n" for before, after in codes)
        file.flush()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["a"]),
            model_writer=(model := io.BytesIO()),
            model_type="char",
            vocab_size=5,
            normalization_rule_tsv=file.name,
            minloglevel=2,
        )
    return read_model(model.getvalue()).normalizer_spec.precompiled_charsmap


def _changed(step: Mapping[str, Any], text: str) -> str:
    """Applies a step to single characters."""
    if step == {"type": "NFKD"}:
        return unicodedata.normalize("NFKD", text)
    if step == {"type": "StripAccents"}:
        return "".join(char for char in text if unicodedata.category(char)[0] != "M")
    if step == {"type": "Lowercase"}:
        return text.lower()
    if fast_tokenizer.type_of(step) != "Precompiled":
        raise ValueError(f"its normalizer has a step {fast_tokenizer.type_of(step)}")
    # This step looks at each character alone, unlike SentencePiece.
    characters = sorted({*text} - {_APART, SPACE_MARK})
    becomes = _by_table(fast_tokenizer.table_of(step), _APART.join(characters)).split(_APART)
    return text.translate(dict(zip(map(ord, characters), becomes, strict=True)))


def _by_table(table: bytes, text: str) -> str:
    """Applies a table of characters to a text, as SentencePiece does."""
    model = ModelProto()
    model.pieces.add(piece="<unk>", type=Piece.UNKNOWN)
    model.normalizer_spec.precompiled_charsmap = table
    try:
        own = sentencepiece.SentencePieceNormalizer(model_proto=model.SerializeToString())
    except RuntimeError:
        raise ValueError("its precompiled_charsmap is damaged") from None
    return own.normalize(text)


def standing_alone(tokenizer: Tokenizer) -> bytes:
    """Returns a SentencePiece model for programs that know neither our rules nor the release's.

    Its table does what preprocess_text and the model's own table do to each character alone. Ids
    may differ where neighbouring characters matter (a final Σ, Korean in single letters and, with
    `keep_accents`, a letter and its mark), and at added tokens, which it lacks.
    """
    if tokenizer.ids == FOLDER:  # Its table has all of the tokenizer.json's steps.
        return tokenizer.content
    model = read_model(without_digit_commas(tokenizer.content))
    # SentencePiece checks how it splits these samples, which the new table may change.
    model.ClearField("self_test_data")
    characters = [chr(code) for code in itertools.chain(*_CODES) if chr(code) != SPACE_MARK]
    text = tokenizer.preprocess(_APART + _APART.join(characters) + _APART)
    spec = model.normalizer_spec
    becomes = _by_table(spec.precompiled_charsmap, text).split(_APART)[1:-1]
    rules = {a: b for a, b in zip(characters, becomes, strict=True) if a != b}
    spec.precompiled_charsmap = _table_of(rules)
    return model.SerializeToString()
