"""Vocabularies and texts that are refused: in one line, by the name of a field or file."""

import json
import pathlib

import pytest

from albert_tf.text import vocabulary
from albert_tf.text.sentence_piece import ExtensibleModel
from albert_tf.text.tokenization import Tokenizer
from tests.kit import tiny
from tests.kit.files import all_words, refused
from tests.text.test_added_tokens import PIECES_WITH, token
from tests.text.vocabularies import SPECIAL, replace, steps_of, their_tokenizer, trained, word_piece

MODEL = (pathlib.Path(__file__).parents[1] / "golden/spm/en_small.model").read_bytes()
DAMAGED = MODEL.replace("▁the".encode(), "▁the".encode()[:-1] + b"\xe9", 1)
WORDS = "\n".join([*SPECIAL, "a", "b"])
FAST, CONFIG, SPM, VOCAB = "tokenizer.json", "tokenizer_config.json", "spiece.model", "vocab.txt"
THEIRS, BERTS = their_tokenizer(MODEL), word_piece(PIECES_WITH)
STEPS, TABLE = steps_of(MODEL, True), {"type": "Precompiled"}
CASED = {"do_lower_case": False}
MARKED = {VOCAB: WORDS, CONFIG: {"added_tokens_decoder": {"5": token("a")}}}
FILES = "`spm_model_file` `vocab_file`"


def find(here, **given):
    return vocabulary.find(str(here), **given)


def pieces(here):
    return Tokenizer(here / SPM)


def words(here):
    return Tokenizer(vocab_file=here / VOCAB)


def extensible(here):
    return ExtensibleModel((here / SPM).read_bytes(), SPM)


def steps(found):
    return {FAST: THEIRS | {"normalizer": {"normalizers": found}}}


def unigram(*vocab):
    return {FAST: THEIRS | {"model": {"type": "Unigram", "vocab": vocab}}}


def added(theirs, text, **flags):
    tokens = [*theirs.get("added_tokens", []), token(text, **flags)]
    return {FAST: theirs | {"added_tokens": tokens}}


# Files, a call, and words of its error's message, which is one line.
REFUSED = [
    # Files of a tokenizer.
    ({}, lambda here: Tokenizer(), FILES),
    ({}, lambda here: Tokenizer("a", "b"), FILES),
    ({}, pieces, f"{SPM} exist"),
    ({}, words, f"{VOCAB} exist"),
    ({f"{SPM}/x": ""}, pieces, f"{SPM} directory"),
    ({f"{VOCAB}/x": ""}, words, f"{VOCAB} directory"),
    ({SPM: WORDS}, pieces, f"{SPM} `vocab_file`"),
    ({VOCAB: MODEL}, words, f"{VOCAB} `spm_model_file`"),
    ({VOCAB: lambda: b"w\n" * 5_000_000}, words, f"{VOCAB} 5,000,000 pieces"),
    ({SPM: DAMAGED}, pieces, f"{SPM} damaged"),
    ({SPM: lambda: trained(vocab_size=40, control_symbols=["[SEP]"])}, pieces, "[CLS], [MASK]:"),
    ({VOCAB: WORDS.replace("[PAD]", "<pad>")}, words, f"{VOCAB} [PAD]:"),
    # Texts and ids.
    ({SPM: MODEL}, lambda here: pieces(here).encode(7), "text int: 7"),
    ({SPM: MODEL}, lambda here: pieces(here).encode("\udcff"), "surrogate"),
    ({SPM: MODEL}, lambda here: pieces(here).convert_ids_to_tokens([5, -1]), "-1 6000"),
    ({SPM: MODEL}, lambda here: pieces(here).convert_ids_to_tokens([5, 6000]), "6000 6000"),
    ({SPM: MODEL}, lambda here: pieces(here).word_starts("greek"), "`word_starts` 'greek'"),
    (
        {SPM: lambda: trained(vocab_size=40, treat_whitespace_as_suffix=True)},
        *(lambda here: pieces(here).word_starts(), f"{SPM} (treat_whitespace_as_suffix)"),
    ),
    # Models to which no piece can be added.
    ({SPM: lambda: trained(vocab_size=40, model_type="bpe")}, extensible, f"{SPM} Unigram"),
    ({SPM: lambda: trained(vocab_size=290, byte_fallback=True)}, extensible, f"{SPM} Unigram"),
    # Which vocabulary, and how text is read.
    ({"a.model": MODEL, "b.model": MODEL}, find, "a.model b.model `spm_model_file`"),
    ({}, lambda here: find(here, spm_model_file="a", vocab_file="b"), FILES),
    ({SPM: MODEL, CONFIG: {"do_lower_case": "no"}}, find, f"{CONFIG}: do_lower_case"),
    ({VOCAB: WORDS, CONFIG: {**CASED, "strip_accents": True}}, find, f"{CONFIG}: strip_accents"),
    ({VOCAB: WORDS, CONFIG: {"tokenize_chinese_chars": False}}, find, "tokenize_chinese_chars"),
    (
        {FAST: their_tokenizer(MODEL, lower=False), CONFIG: {"do_lower_case": True}},
        *(find, f"{FAST} `do_lower_case` `keep_accents`"),
    ),
    # A tokenizer.json that normalises in another way, or has other pieces.
    ({FAST: word_piece(lowercase=False, strip_accents=True)}, find, f"{FILES} without lowercase"),
    ({FAST: word_piece(handle_chinese_chars=False)}, find, f"{FILES} handle_chinese_chars"),
    ({FAST: word_piece(clean_text=False)}, find, f"{FILES} clean_text"),
    ({FAST: word_piece(lowercase=None)}, find, f"{FILES} BertNormalizer"),
    ({FAST: word_piece(type="Lowercase")}, find, f"{FILES} BertNormalizer"),
    (steps([step for step in STEPS if step["type"] != "NFKD"]), find, f"{FILES} not NFKD,"),
    (steps([step for step in STEPS if step["type"] != "StripAccents"]), find, "not NFKD,"),
    (steps([{"type": "NFC"}, *STEPS]), find, f"{FAST} not NFKD,"),
    (steps([replace("String", "a", "b"), *STEPS]), find, f"{FAST} not NFKD,"),
    (steps([3, *STEPS]), find, f"{FAST} not NFKD,"),
    (steps(3), find, f"{FAST} not NFKD,"),
    ({FAST: THEIRS | {"normalizer": None}}, find, f"{FAST} not NFKD,"),
    (steps([*STEPS[2:5], {**TABLE, "precompiled_charsmap": "?"}]), find, f"{FAST} damaged"),
    (steps([*STEPS[2:5], TABLE]), find, f"{FAST} no precompiled_charsmap"),
    ({FAST: THEIRS | {"model": {"type": "BPE"}}}, find, f"{FAST} WordPiece Unigram"),
    (unigram(["a", float("nan")]), find, f"{FAST} scores"),
    (unigram(["a", -1e300]), find, f"{FAST} scores"),
    ({FAST: {"model": {"type": "WordPiece", "vocab": {"a": 1}}}}, find, f"{FAST} consecutive"),
    ({FAST: {"model": {"type": "WordPiece", "vocab": {"a": 0}}}}, find, "continuing_subword_pre"),
    # Added tokens that can't be read as Hugging Face's tokenizers do.
    (added(BERTS, "[E1]"), find, f"{FAST} '[E1]' (not in the vocabulary)"),
    (added(BERTS, "un", normalized=True), find, f"{FAST} 'un' (normalized=true)"),
    (added(BERTS, "un", single_word=True), find, f"{FAST} 'un' (single_word=true)"),
    (added(THEIRS, "[E1]"), find, f"{FAST} '[E1]' (not in the vocabulary)"),
    (added(THEIRS, "th", normalized=True), find, f"{FAST} 'th' (normalized=true)"),
    ({SPM: MODEL, **added(THEIRS, "[E1]")}, find, f"{FAST} '[E1]' (not in the vocabulary)"),
    ({SPM: MODEL, **added(THEIRS, "th", single_word=True)}, find, "'th' (single_word=true)"),
    (MARKED, lambda here: find(here).tokenizer.encode_words(["a"]), "`word_separator` a:"),
]


@pytest.mark.parametrize(("files", "call", "message"), REFUSED)
def test_what_is_refused(files, call, message, tmp_path):
    for name, content in files.items():
        content = content() if callable(content) else content
        tiny.write(tmp_path / name, json.dumps(content) if isinstance(content, dict) else content)
    with refused(all_words(message), tmp_path, exception=(ValueError, OSError)):
        call(tmp_path)
