"""Reads and writes vocabularies as tokenizer.json, the file of Hugging Face's fast tokenizers."""

from __future__ import annotations

import base64
import binascii
import functools
import itertools
import json
import os
import sys
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from albert_tf.storage import files
from albert_tf.storage.text_files import read_json_object
from albert_tf.text import sentence_piece, word_piece
from albert_tf.text.sentence_piece import Piece, ends_in_digit_comma
from albert_tf.text.tokenization import Tokenizer
from albert_tf.text.word_starts import CONTINUATION_MARK, SPACE_MARK

# The file that transformers writes; since version 5, without the vocabulary beside it.
FILE = "tokenizer.json"
# Scores are float32 in SentencePiece's file.
_MOST_SCORE = 3e38
# transformers subtracts this from the scores of pieces that the release splits again.
_DIGIT_COMMA_PENALTY = 100
# Subtracted from the scores of pieces that SentencePiece never uses.
_UNUSED_PENALTY = 1000
# Start of the regular expression of combining characters, the same in every Unicode version.
_COMBINING = "[\u0300-\u034e"


def _step(how: str, pattern: str, content: str) -> dict[str, Any]:
    """Returns the step that replaces a "String" or "Regex"."""
    return {"type": "Replace", "pattern": {how: pattern}, "content": content}


# Steps that transformers adds for a spiece.model. The release does not replace such quotes.
QUOTES = [_step("String", "``", '"'), _step("String", "''", '"')]
# A sigma at the end of a word, as in `str.lower`; the step Lowercase looks at single letters.
_CASED, _IGNORED = r"[\p{Lu}\p{Ll}\p{Lt}]", r"[\p{Mn}\p{Me}\p{Cf}\p{Lm}\p{Sk}'.:·‘’․‧]"
_SIGMA = _step("Regex", f"(?<={_CASED})Σ(?!{_IGNORED}*{_CASED})", "ς")
ONE_SPACE = _step("Regex", " {2,}", " ")
_STRIP = {"type": "Strip", "strip_left": True, "strip_right": True}
_COMPOSE = {"type": "NFC"}
# A private-use character between two marks preserves their order during NFC, as the model does: a
# vowel after a shadda, or an asat before a dot. Only U+0300 to U+036F compose in pairs.
_APART = "\ue000"
_HELD_APART = _step("Regex", "(?<=\\p{Mn})(?=\\p{Mn})(?![\u0300-\u036f])", _APART)
_TOGETHER = _step("String", _APART, "")


def read(path: str) -> tuple[bytes, bool, bool, bool]:
    """Reads the vocabulary in a tokenizer.json.

    Returns:
      The content of its file, whether it is a WordPiece vocabulary, whether text is lower-cased,
      and whether it keeps its accents, as in Vocabulary.form.
    """
    tokenizer = read_json_object(path)
    model, normalizer = member(tokenizer, "model"), member(tokenizer, "normalizer")
    is_word_piece = model.get("type") == "WordPiece"
    try:
        if is_word_piece:
            content, form = _word_piece_file(model), _bert_form(normalizer)
        else:
            table, form = _character_table(normalizer)
            content = _sentence_piece_model(tokenizer, model, table)
    except ValueError as error:
        raise ValueError(
            f"{path} can't be used ({error}): put the spiece.model or vocab.txt that the model "
            "was trained with beside it, or name it with `spm_model_file` or `vocab_file`"
        ) from error
    return content, is_word_piece, *form


def member(holder: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Returns the JSON object of this name in another one; an empty one if there is none."""
    value = holder.get(name)
    return value if isinstance(value, dict) else {}


def _word_piece_file(model: Mapping[str, Any]) -> bytes:
    vocab = member(model, "vocab")
    if not vocab or sorted(vocab.values(), key=str) != sorted(range(len(vocab)), key=str):
        raise ValueError("the ids of its pieces are not consecutive from 0")
    if model.get("continuing_subword_prefix") != CONTINUATION_MARK:
        raise ValueError(f"its continuing_subword_prefix is not {CONTINUATION_MARK}")
    # In vocab.txt the number of a line is the id of its piece.
    pieces = sorted(vocab, key=lambda piece: vocab[piece])
    if any(piece.split() != [piece] for piece in pieces):
        raise ValueError("a piece contains a space")
    return "".join(f"{piece}\n" for piece in pieces).encode()


def _bert_form(normalizer: Mapping[str, Any]) -> tuple[bool, bool]:
    """Returns a BertNormalizer's case and accents; it must do everything else as WordPiece does."""
    steps = [step for step in normalizer.get("normalizers") or () if step != _SIGMA]
    if len(steps) == 1 and isinstance(steps[0], dict):
        normalizer = steps[0]
    lower = normalizer.get("lowercase")
    if normalizer.get("type") != "BertNormalizer" or not isinstance(lower, bool):
        raise ValueError("its normalizer is not a BertNormalizer")
    if not (normalizer.get("clean_text") and normalizer.get("handle_chinese_chars")):
        raise ValueError("its normalizer lacks clean_text or handle_chinese_chars")
    strips = normalizer.get("strip_accents")
    if strips and not lower:
        raise ValueError("its normalizer strips accents without lowercase")
    return lower, lower and strips is False


def _sentence_piece_model(
    tokenizer: Mapping[str, Any], model: Mapping[str, Any], table: bytes
) -> bytes:
    vocab, unknown = scored_pieces(model)
    added = tokenizer.get("added_tokens")
    added = [token for token in added if isinstance(token, dict)] if isinstance(added, list) else []
    special = [token.get("content") for token in added if token.get("special")]
    found = sentence_piece.ModelProto()
    for i, (piece, score) in enumerate(vocab):
        # No trained piece has so low a log probability.
        is_unused = score <= -_UNUSED_PENALTY
        score += _UNUSED_PENALTY * is_unused
        # `write` lowers the scores of such pieces, so that no text gets them: undo that.
        if ends_in_digit_comma(piece) and score <= -_DIGIT_COMMA_PENALTY:
            score += _DIGIT_COMMA_PENALTY
        piece_type = Piece.NORMAL
        if i == unknown:
            piece_type = Piece.UNKNOWN
        elif piece in special:
            piece_type = Piece.CONTROL
        elif is_unused:
            piece_type = Piece.UNUSED
        elif score == 0:  # No piece that training found has this score.
            piece_type = Piece.USER_DEFINED
        found.pieces.add(piece=piece, score=score, type=piece_type)
    # By default it adds an initial space, collapses runs of spaces, and writes each as a mark.
    found.normalizer_spec.precompiled_charsmap = table
    return found.SerializeToString()


def scored_pieces(model: Mapping[str, Any]) -> tuple[list[tuple[str, float]], Any]:
    """Returns the pieces of a Unigram model with their scores, and the id of the unknown one."""
    if model.get("type") != "Unigram" or model.get("byte_fallback"):
        raise ValueError("its model is neither WordPiece nor Unigram without byte fallback")
    vocab = model.get("vocab")
    if not isinstance(vocab, list) or not all(map(_is_scored_piece, vocab)):
        raise ValueError("its pieces have no scores")
    return vocab, model.get("unk_id")


def _is_scored_piece(row: Any) -> bool:
    return (
        isinstance(row, list)
        and len(row) == 2
        and isinstance(row[0], str)
        and isinstance(row[1], float)
        and abs(row[1]) < _MOST_SCORE  # False for NaN.
    )


def type_of(step: Any) -> Any:
    """Returns a step's type: "StripAccents" also for our step that strips combining characters."""
    if not isinstance(step, dict):
        return None
    pattern = member(step, "pattern").get("Regex")
    if isinstance(pattern, str) and pattern.startswith(_COMBINING) and step.get("content") == "":
        return "StripAccents"
    return step.get("type")


def steps_of(normalizer: Mapping[str, Any]) -> list[Any]:
    """Returns the steps of a tokenizer.json's normalizer."""
    steps = normalizer.get("normalizers", [normalizer])
    return steps if isinstance(steps, list) else [None]


def _character_table(normalizer: Mapping[str, Any]) -> tuple[bytes, tuple[bool, bool]]:
    """Returns the SentencePiece model's own table of characters, and the form of its text.

    The steps before the table must do what preprocess_text does.
    """
    same = (*QUOTES, _replaced(str.isspace, " "), _SIGMA, ONE_SPACE, _STRIP)
    same += (_HELD_APART, _TOGETHER)
    steps = [step for step in steps_of(normalizer) if step not in same]
    found = [type_of(step) for step in steps]
    # The remaining steps tell the form of the text.
    lower, keeps = "Lowercase" in found, {"NFKD", "StripAccents"}.isdisjoint(found)
    before = [*["NFKD", "StripAccents"] * (not keeps), *["Lowercase"] * lower]
    if found == before:  # A model without a table.
        return b"", (lower, keeps)
    if found not in ([*before, "Precompiled"], [*before, "NFC", "Precompiled"]):
        raise ValueError(
            "its normalizer is not NFKD, StripAccents, Lowercase (if uncased) and Precompiled, "
            "nor, with keep_accents, the last of them"
        )
    return table_of(steps[-1]), (lower, keeps)


def table_of(step: Mapping[str, Any]) -> bytes:
    """Returns the table of characters of a step Precompiled."""
    table = step.get("precompiled_charsmap")
    if not isinstance(table, str):
        raise ValueError("it has no precompiled_charsmap")
    try:
        return base64.b64decode(table, validate=True)
    except binascii.Error as error:
        raise ValueError("its precompiled_charsmap is damaged") from error


def write(tokenizer: Tokenizer, is_word_piece: bool, directory: str) -> bool:
    """Writes a tokenizer.json that gives the same ids as a tokenizer.

    Returns whether that is possible: with SentencePiece, only for a Unigram model that begins each
    text and each word with a space.
    """
    if is_word_piece:
        pieces, parts = [], _of_word_piece(tokenizer)
    else:
        stored = sentence_piece.read_model(tokenizer.content)
        spec = stored.normalizer_spec
        # An initial space is added, extra spaces are removed, and each is written as a mark.
        usual = spec.add_dummy_prefix and spec.remove_extra_whitespaces and spec.escape_whitespaces
        begins_words = not sentence_piece.spaces_end_words(stored)
        if not (usual and sentence_piece.is_unigram(stored) and begins_words):
            return False
        pieces = stored.pieces
        parts = _of_pieces(tokenizer, pieces, spec.precompiled_charsmap)

    # Hugging Face's tokenizers recognise special pieces in raw text.
    control = (Piece.UNKNOWN, Piece.CONTROL)
    ids = {i for i, piece in enumerate(pieces) if piece.type in control}
    ids |= {getattr(tokenizer, f"{name}_id") for name in ("pad", "unk", "cls", "sep", "mask")}
    ids |= {*tokenizer.convert_tokens_to_ids(tokenizer.added_tokens)}
    texts = dict(zip(sorted(ids), tokenizer.convert_ids_to_tokens(sorted(ids)), strict=True))
    options = {"single_word": False, "rstrip": False, "normalized": False, "special": True}
    added = [
        {"id": i, "content": texts[i], "lstrip": i == tokenizer.mask_id, **options} for i in texts
    ]
    # [CLS] and [SEP] go around texts and pairs.
    ends = {texts[i]: i for i in (tokenizer.cls_id, tokenizer.sep_id)}
    template = [
        *({"SpecialToken": {"id": end, "type_id": 0}} for end in ends),
        *({"Sequence": {"id": name, "type_id": i}} for i, name in enumerate("AB")),
        {"SpecialToken": {"id": texts[tokenizer.sep_id], "type_id": 1}},
    ]
    processor = {
        "type": "TemplateProcessing",
        "single": [template[i] for i in (0, 2, 1)],
        "pair": [template[i] for i in (0, 2, 1, 3, 4)],
        "special_tokens": {
            end: {"id": end, "ids": [i], "tokens": [end]} for end, i in ends.items()
        },
    }
    written = {"version": "1.0", "added_tokens": added, **parts, "post_processor": processor}
    files.replace(os.path.join(directory, FILE), json.dumps(written, ensure_ascii=False))
    return True


def _of_pieces(tokenizer: Tokenizer, pieces: Sequence[Any], table: bytes) -> dict[str, Any]:
    """Returns the steps of preprocess_text and the model's own table, and the model's pieces."""
    steps = [_replaced(str.isspace, " ")]
    if not tokenizer.keep_accents:
        steps += [{"type": "NFKD"}, _replaced(unicodedata.combining, "")]
    if tokenizer.do_lower_case:
        steps += [_SIGMA, {"type": "Lowercase"}]
    if table:
        # Unlike the model's own table, the step Precompiled composes no syllables; NFC does.
        charsmap = base64.b64encode(table).decode()
        compose = [_HELD_APART, _COMPOSE, _TOGETHER] if tokenizer.keep_accents else [_COMPOSE]
        steps += [*compose, {"type": "Precompiled", "precompiled_charsmap": charsmap}]
    # A user-defined piece scores 0: more than any split of it.
    scores = [piece.score - _penalty(piece) for piece in pieces]
    types = [piece.type for piece in pieces]
    spaces: dict[str, Any] = {"type": "Metaspace", "replacement": SPACE_MARK}
    spaces |= {"prepend_scheme": "always", "split": tokenizer.words_are_apart}
    model = {
        "type": "Unigram",
        "unk_id": types.index(Piece.UNKNOWN),
        "vocab": [[piece.piece, score] for piece, score in zip(pieces, scores, strict=True)],
        "byte_fallback": Piece.BYTE in types,
    }
    normalizer = {"type": "Sequence", "normalizers": [*steps, ONE_SPACE, _STRIP]}
    decoder = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, spaces]}
    # As in transformers, no offset includes the space before a word.
    steps = [{"type": "WhitespaceSplit"}] * tokenizer.words_are_apart
    splitter = {"type": "Sequence", "pretokenizers": [*steps, spaces]}
    return {"normalizer": normalizer, "pre_tokenizer": splitter, "decoder": decoder, "model": model}


def _penalty(piece: Any) -> int:
    if piece.type == Piece.UNUSED:
        return _UNUSED_PENALTY
    return _DIGIT_COMMA_PENALTY * ends_in_digit_comma(piece.piece)


def _of_word_piece(tokenizer: Tokenizer) -> dict[str, Any]:
    lower, pieces = tokenizer.do_lower_case, range(tokenizer.vocab_size)
    bert = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
    bert |= {"strip_accents": False if tokenizer.keep_accents else None, "lowercase": lower}
    model = {
        "type": "WordPiece",
        "unk_token": word_piece.UNKNOWN,
        "continuing_subword_prefix": CONTINUATION_MARK,
        "max_input_chars_per_word": word_piece.MAX_WORD_CHARS,
        "vocab": dict(zip(tokenizer.convert_ids_to_tokens(pieces), pieces, strict=True)),
    }
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*[_SIGMA] * lower, bert]},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": CONTINUATION_MARK, "cleanup": False},
        "model": model,
    }


@functools.cache
def _replaced(is_replaced: Callable[[str], Any], content: str) -> dict[str, Any]:
    codes = [code for code in range(sys.maxunicode + 1) if is_replaced(chr(code))]
    runs = itertools.groupby(enumerate(codes), key=lambda pair: pair[1] - pair[0])
    ranges = [[chr(code) for _, code in run] for _, run in runs]
    text = "".join(f"{run[0]}-{run[-1]}" for run in ranges)
    return _step("Regex", f"[{text}]", content)
