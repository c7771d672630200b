"""Ids of a Hugging Face folder's own tokenizer.json.

tests/peers/test_hugging_face.py compares them with the tokenizers library on real texts.
"""

import json
import logging

import pytest

from albert_tf.answers.rows import pair_features
from albert_tf.text import folder_ids, vocabulary
from albert_tf.text.sentence_piece import ExtensibleModel
from tests.kit import tiny
from tests.text.vocabularies import replace, word_piece, written

SYMBOLS = ["(", ")", "-", ".", '"']
SCORES = {"▁": -2, "▁well": -3, "known": -4, "▁known": -4.5, "▁a": -3, "a": -5, "c": -6, "▁5": -7}
SCORES |= {"▁5,": -8.5, ",": -3, "σ": -8, "e": -7, "▁a▁a": -1, "[": -9, "m": -9}
SPECIAL = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
STEPS = [replace("String", "``", '"'), replace("String", "''", '"'), {"type": "NFKD"}]
STEPS += [{"type": "StripAccents"}, {"type": "Lowercase"}]
SPACES = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
SINCE_5 = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, SPACES]}
BACKEND = {"backend": "tokenizers"}
CLASSIFIER = {"architectures": ["AlbertForSequenceClassification"]}


def tokenizer_json(version: int, steps=tuple(STEPS)) -> dict:
    """Returns the tokenizer.json that a version of transformers writes."""
    pieces = {**dict.fromkeys([*SPECIAL, *SYMBOLS], 0.0), **SCORES}
    added = [{"content": text, "lstrip": text == "[MASK]"} for text in [*SPECIAL, *SYMBOLS]]
    model = {"type": "Unigram", "unk_id": 1, "vocab": [[p, float(s)] for p, s in pieces.items()]}
    normalizer = {"type": "Sequence", "normalizers": [*steps, replace("Regex", " {2,}", " ")]}
    parts = {"normalizer": normalizer, "pre_tokenizer": SINCE_5 if version == 5 else SPACES}
    return {"added_tokens": added, "model": model, **parts}


@pytest.fixture(params=[4, 5])
def version(request):
    return request.param


@pytest.fixture
def folder(version, tmp_path):
    tiny.write(tmp_path / "config.json", json.dumps(CLASSIFIER))
    if version == 5:
        tiny.write(tmp_path / "tokenizer_config.json", json.dumps(BACKEND))
    return written(tmp_path, tokenizer_json(version))


@pytest.mark.parametrize(
    ("text", "pieces", "without"),
    [
        ("", "", ""),
        ("well-known", "▁well - ▁known", ""),
        ("  Wéll - known", "▁well ▁ - ▁known", "▁well - ▁known"),
        ("(( ).", "( ( ▁ ) .", "( ( ) ."),
        # Symbols that normalisation creates start no new word, and remove no space.
        ("well… －a", "▁well . . . ▁ - a", ""),
        ("```a'''", '▁ " <unk> a " <unk>', ""),
        ("5, 5", "▁5, ▁5", ""),
        ("ΑΣ a a", "▁ <unk> σ ▁a ▁a", ""),
        ("well \u00a0", "▁well ▁", "▁well"),
        (" ", "▁", ""),
        ("a [MASK]a[mask]", "▁a [MASK] ▁a [ m a <unk>", ""),
        ("[SEP]a", "[SEP] ▁a", ""),
        ("▁a", "▁a", ""),
    ],
)
def test_pieces(text, pieces, without, version, folder):
    """Since version 5 no piece stands for a space before a symbol, or at the end."""
    tokenizer = vocabulary.find(folder).tokenizer
    expected = (without or pieces if version == 5 else pieces).split()
    if version == 5 and text == " ":
        expected = []
    ids = tokenizer.convert_tokens_to_ids(expected)
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode(text)) == expected
    assert tokenizer.encode_with_offsets(text)[0] == ids
    for most in (0, 1, 3):
        assert tokenizer.encode(text, most) == ids[:most]


def test_offsets_and_segments(version, folder):
    tokenizer = vocabulary.find(folder).tokenizer
    text = "wéll-known… ''a"
    spans = [text[begin:end] for begin, end in tokenizer.encode_with_offsets(text)[1]]
    assert spans == ["wéll", "-", "known", "…", "…", "…", " ", "''", "a"]
    row = pair_features(tokenizer, "well", "a a", 16)
    assert row["segment_ids"].tolist() == ([0] * 6 if version == 5 else [0, 0, 0, 1, 1, 1])
    # Encoding only the beginning of a long text gives the same ids.
    long = "a well (known) " * 300
    assert tokenizer.encode(long, 50) == tokenizer.encode(long)[:50]


@pytest.mark.parametrize(
    ("files", "ids"),
    [
        ({"config.json": CLASSIFIER}, "folder"),
        ({"config.json": {"architectures": ["AlbertForMaskedLM"]}}, "release"),
        ({"config.json": {}}, "release"),
        ({"config.json": {"architectures": ["AlbertModel"]}, "modules.json": {}}, "folder"),
        ({"config.json": CLASSIFIER, "tokenizer_config.json": {"ids": "release"}}, "release"),
        ({"config.json": {}, "tokenizer_config.json": {"ids": "folder"}}, "folder"),
    ],
)
def test_files_tell_whose_ids(files, ids, tmp_path, caplog):
    written(tmp_path, tokenizer_json(5))
    for name, content in files.items():
        tiny.write(tmp_path / name, json.dumps(content))
    with caplog.at_level(logging.INFO):
        found = vocabulary.find(str(tmp_path)).tokenizer
    assert found.ids == ids
    assert [r.getMessage().startswith("ids=folder") for r in caplog.records] == [True] * (
        ids == "folder"
    )
    # A given value takes precedence; text in another form gets the release's ids.
    for asked in ("release", "folder"):
        assert vocabulary.find(str(tmp_path), ids=asked).tokenizer.ids == asked
    assert vocabulary.find(str(tmp_path), do_lower_case=True).tokenizer.ids == ids
    caplog.clear()
    given = {"do_lower_case": False, "keep_accents": False}
    assert vocabulary.find(str(tmp_path), **given).tokenizer.ids == "release"
    assert [record.getMessage() for record in caplog.records] == [
        f"ids=release: {tmp_path}/tokenizer.json has do_lower_case=True, unlike what was given; "
        "leave that out for its own ids"
    ] * (ids == "folder")


def test_they_go_along(folder, version, tmp_path):
    """Copied into each directory that gets the vocabulary, with the tokenizer.json."""
    words = vocabulary.find(folder)
    text, own = "well - known ", tmp_path.joinpath("tokenizer.json").read_bytes()
    for write in (vocabulary.copy, vocabulary.keep, vocabulary.write_hugging_face):
        there = tmp_path / write.__name__
        there.mkdir()
        tiny.write(there / "config.json", json.dumps(CLASSIFIER))
        write(words, str(there), *[512] * (write is vocabulary.write_hugging_face))
        again = vocabulary.find(str(there))
        assert again.tokenizer.digest == words.tokenizer.digest
        assert again.tokenizer.encode(text) == words.tokenizer.encode(text)
        assert (there / "tokenizer.json").read_bytes() == own
        assert json.loads((there / "tokenizer.json").read_bytes()) == tokenizer_json(version)
        # The release's ids are still available.
        assert vocabulary.find(str(there), ids="release").tokenizer.ids == "release"
    vocabulary.check_kept(words, str(tmp_path / "keep"))
    # From there back to Hugging Face; the choice of ids is recorded if files imply the other.
    for ids in ("folder", "release"):
        back = tmp_path / ids
        back.mkdir()
        tiny.write(back / "config.json", json.dumps(CLASSIFIER))
        vocabulary.write_hugging_face(
            vocabulary.find(str(tmp_path / "keep"), ids=ids), str(back), 9
        )
        assert (back / "tokenizer.json").read_bytes() == own
        assert vocabulary.find(str(back)).tokenizer.ids == ids
    with pytest.raises(ValueError, match="has `ids=folder`, not `ids=release`: give the former"):
        vocabulary.check_kept(vocabulary.find(folder, ids="release"), str(tmp_path / "keep"))


def test_what_can_not_be_followed(folder, tmp_path):
    words, other = vocabulary.find(folder), tmp_path / "other"
    model = tiny.write(tmp_path / "spiece.model", words.tokenizer.content)
    for given in (
        {"keep_accents": True, "ids": "folder"},
        {"spm_model_file": model, "ids": "release"},
    ):
        with pytest.raises(ValueError, match="has `ids=.*`: others need a tokenizer.json"):
            vocabulary.find(folder, **given)
    with pytest.raises(ValueError, match="with the release's ids: pieces can only be added"):
        ExtensibleModel(words.tokenizer.content, "spiece.model")
    other.mkdir()
    tiny.write(other / "spiece.model", words.tokenizer.content)
    with pytest.raises(ValueError, match=r"no tokenizer\.json is beside .*spiece\.model"):
        vocabulary.write_hugging_face(vocabulary.find(str(other)), str(tmp_path), 9)
    # Its tokenizer.json was left behind.
    tiny.write(other / "spiece.model", vocabulary.find(folder, ids="release").tokenizer.content)
    tiny.write(other / "tokenizer_config.json", '{"ids": "folder"}')
    with pytest.raises(ValueError, match=r"spiece\.model has `ids=release`: others need a token"):
        vocabulary.find(str(other))
    (other / "tokenizer_config.json").unlink()
    (other / "spiece.model").unlink()
    written(other, word_piece())
    with pytest.raises(ValueError, match=r"tokenizer\.json has `ids=release`: others need"):
        vocabulary.find(str(other), ids="folder")
    tiny.write(other / "tokenizer_config.json", '{"ids": "mine"}')
    written(other, tokenizer_json(5))
    with pytest.raises(ValueError, match="ids must be one of release, folder, not 'mine'"):
        vocabulary.find(str(other))


@pytest.mark.parametrize(
    ("config", "segments"),
    [
        (BACKEND, [0, 0]),
        ({**BACKEND, "model_input_names": ["input_ids", "attention_mask"]}, [0, 0]),
        ({**BACKEND, "model_input_names": ["input_ids", "token_type_ids"]}, [0, 1]),
        # Version 4 keeps a released model's file, which splits words as version 5 does.
        ({"tokenizer_class": "AlbertTokenizer"}, [0, 1]),
    ],
)
def test_segments_of_pairs(config, segments, tmp_path):
    tiny.write(tmp_path / "config.json", json.dumps(CLASSIFIER))
    tiny.write(tmp_path / "tokenizer_config.json", json.dumps(config))
    tokenizer = vocabulary.find(written(tmp_path, tokenizer_json(5))).tokenizer
    row = pair_features(tokenizer, "well", "a", 16)
    assert row["segment_ids"][[1, 3]].tolist() == segments
    assert tokenizer.encode("well - ") == tokenizer.convert_tokens_to_ids(["▁well", "-"])


def damaged(normalizer=(), **parts) -> dict:
    found = tokenizer_json(5, [*STEPS, *normalizer])
    return {**found, **parts}


ALONE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": True}


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (damaged([{"type": "NFC"}]), "its normalizer has a step NFC"),
        (damaged([None]), "its normalizer has a step None"),
        (damaged([{"type": "Precompiled"}]), "it has no precompiled_charsmap"),
        (
            damaged([{"type": "Precompiled", "precompiled_charsmap": "AAAA"}]),
            "its precompiled_charsmap is damaged",
        ),
        (damaged(pre_tokenizer=ALONE), "its pre_tokenizer puts no space before each word"),
        (damaged(pre_tokenizer={"pretokenizers": None}), "its pre_tokenizer puts no space"),
        (damaged(pre_tokenizer=None), "its pre_tokenizer puts no space before each word"),
        (damaged(model={"type": "BPE"}), "its model is neither WordPiece nor Unigram"),
    ],
)
def test_what_is_refused_in_a_line(file, reason, tmp_path):
    path = written(tmp_path, file) + "/tokenizer.json"
    with pytest.raises(ValueError, match=rf"tokenizer\.json: `ids=folder` can't .*{reason}"):
        folder_ids.read(path, BACKEND)
