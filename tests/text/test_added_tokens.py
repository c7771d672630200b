"""Tokens added to a Hugging Face tokenizer.

tests/peers/test_hugging_face.py compares them with Hugging Face's own tokenizers.
"""

import json
import shutil

import pytest

from albert_tf.text import vocabulary
from albert_tf.text.vocabulary import Vocabulary
from tests.kit import tiny
from tests.text.vocabularies import PIECES, trained, word_piece, written

TOKENS = ["[unused1]", "[unused1]x", "中"]
PIECES_WITH = [*PIECES, *TOKENS[:2], "[", "]", "un", "##used", "##1"]
FLAGS = {"single_word": False, "normalized": False, "special": True}


def token(text: str, **flags) -> dict:
    return {"id": 9, "content": text, **FLAGS, **flags}


# Files list special pieces among them; a text may contain any of these, and not all need an id.
PLAIN = ["<pad>", "[PAD]", "<unk>", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>"]
# As the files of tokenizers from 2019 to 2026 list them.
STORED = {
    "tokenizer.json": {"added_tokens": [token(text, lstrip=True) for text in [*PLAIN, *TOKENS]]},
    "tokenizer_config.json": {
        "added_tokens_decoder": {str(i): token(text) for i, text in enumerate(TOKENS[:2])},
        "extra_special_tokens": [*TOKENS[2:], "", 7, {"content": []}],
        "additional_special_tokens": "none of the kind",
    },
    "special_tokens_map.json": {"additional_special_tokens": [*TOKENS[:2], token(TOKENS[2])]},
    "added_tokens.json": dict.fromkeys(TOKENS, 3),
}


@pytest.fixture
def folder(tmp_path):
    """A directory with a WordPiece vocabulary, including the pieces of "[unused1]" as text."""
    tiny.write(tmp_path / "vocab.txt", "\n".join(PIECES_WITH))
    return tmp_path


@pytest.mark.parametrize("name", STORED)
def test_added_tokens_are_found_and_honoured(name, folder):
    if name == "tokenizer.json":  # It is the vocabulary, too.
        (folder / "vocab.txt").unlink()
        written(folder, word_piece(PIECES_WITH) | STORED[name])
    else:
        tiny.write(folder / name, json.dumps(STORED[name]))
    tokenizer = vocabulary.find(str(folder)).tokenizer
    assert set(tokenizer.added_tokens) == set(TOKENS)
    # The longest match wins; case counts; the text around is split afresh, special pieces as text.
    text = "ab[unused1] 中[Unused1][unused1]xB"
    expected = [6, 7, 10, 8, 12, 14, 15, 16, 13, 11, 5]
    assert tokenizer.encode(text) == expected
    found, offsets = tokenizer.encode_with_offsets(text)
    assert found == expected
    spans = ["a", "b", "[unused1]", "中", "[", "Un", "used", "1", "]", "[unused1]x", "B"]
    assert [text[begin:end] for begin, end in offsets] == spans
    assert tokenizer.encode(text, 3) == expected[:3]
    assert tokenizer.encode("") == [] and tokenizer.encode(TOKENS[0]) == [10]


def test_they_go_along(folder):
    """Copied into each directory that gets the vocabulary."""
    tiny.write(folder / "added_tokens.json", json.dumps(STORED["added_tokens.json"]))
    words = vocabulary.find(str(folder))
    for write in (vocabulary.copy, vocabulary.keep, vocabulary.write_hugging_face):
        there = folder / write.__name__
        there.mkdir()
        write(words, str(there), *[512] * (write is vocabulary.write_hugging_face))
        again = vocabulary.find(str(there)).tokenizer
        assert again.encode("a[unused1]x") == words.tokenizer.encode("a[unused1]x") == [6, 11]
        assert again.digest == words.tokenizer.digest
    added = json.loads((there / "tokenizer.json").read_text())["added_tokens"]
    assert {token["content"] for token in added} > set(TOKENS)
    config = json.loads((there / "tokenizer_config.json").read_text())
    flags = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
    written = {"content": "[unused1]", **flags, "special": True}
    assert config["added_tokens_decoder"]["10"] == written
    # The same pieces without added tokens are another vocabulary.
    (folder / "plain").mkdir()
    plain = shutil.copy(folder / "vocab.txt", folder / "plain")
    with pytest.raises(ValueError, match="is another vocabulary than"):
        vocabulary.check_kept(Vocabulary.read(plain, True), str(folder / "keep"))


def test_what_sentence_piece_finds_itself_is_left_to_it(tmp_path):
    """In lower-cased text, "-" and "[e2]" occur, but not "[E1]": it remains an added token."""
    model = trained(vocab_size=60, user_defined_symbols=["-", "[E1]", "[e2]"])
    tiny.write(tmp_path / "spiece.model", model)
    before = vocabulary.find(str(tmp_path)).tokenizer
    config = {"added_tokens_decoder": {"4": token("-"), "5": token("[E1]"), "6": token("[e2]")}}
    tiny.write(tmp_path / "tokenizer_config.json", json.dumps(config))
    after = vocabulary.find(str(tmp_path)).tokenizer
    assert after.added_tokens == ("[E1]",)
    assert after.encode("the-ship[e2]") == before.encode("the-ship[e2]")
    marked = [*before.encode("the ship"), *after.convert_tokens_to_ids(["[E1]"])]
    assert after.encode("the ship [E1] saw") == [*marked, *before.encode("saw")]
    assert before.encode("[E1]") != after.encode("[E1]")
