"""Models go to and come from the real transformers, and compute the same there."""

import contextlib
import dataclasses
import gettext
import gzip
import json
import pathlib
import random
import re
import unicodedata

import numpy as np
import pytest
from safetensors.numpy import load_file

import albert_tf
from albert_tf.answers.rows import pair_features
from albert_tf.cli.train_sentencepiece import main as train
from albert_tf.conversion.convert import convert
from albert_tf.conversion.stored_model import ModelLocation
from albert_tf.generator.settings import SentencePieceSettings
from albert_tf.inspection import attention, similarity
from albert_tf.inspection import models as inspection_models
from albert_tf.text import vocabulary
from albert_tf.text.sentence_piece import ModelProto
from albert_tf.text.word_splitting import split_words
from tests.cli.test_run_finetune_tokens import write
from tests.inspection.test_similarity import expected_of, rows_of
from tests.kit import finetune_runs, goldens, tolerances
from tests.kit.tiny import parse, randomise
from tests.peers import models
from tests.peers.models import assert_close
from tests.text.test_keep_accents import TEXTS, decomposed, train_keeping

CONFIGS = {**models.CONFIGS, "relu": models.RELU, "uneven": models.UNEVEN}
LOADED_WHOLE = {"missing_keys": [], "unexpected_keys": [], "mismatched_keys": []}

pytestmark = pytest.mark.peers


def their_config(config) -> dict:
    values = config.to_dict()
    values.pop("down_scale_factor")
    return values | {"hidden_act": {"gelu": "gelu_new"}.get(config.hidden_act, config.hidden_act)}


def their_features(features) -> dict:
    names = {"input_mask": "attention_mask", "segment_ids": "token_type_ids"}
    return {name: features[ours] for ours, name in {"input_ids": "input_ids", **names}.items()}


def save(hugging_face, config, folder, name="AlbertForPreTraining", size="1GB", **changes):
    given = {"config": {**their_config(config), **changes}, "directory": folder, "seed": 3}
    hugging_face("save", architecture=name, shard_size=size, **given)


def run(hugging_face, architecture, directory, features, tmp_path):
    np.savez(tmp_path / "inputs.npz", **their_features(features))
    files = {f"{name}puts": tmp_path / f"{name}puts.npz" for name in ("in", "out")}
    info = hugging_face("run", architecture=architecture, directory=directory, **files)
    assert info == LOADED_WHOLE
    with np.load(tmp_path / "outputs.npz") as stored:
        return {name: stored[name] for name in stored.files}


def assert_same_outputs(ours, theirs):
    # Their hidden states are those of each layer, with the last layer's twice.
    layers = np.stack([np.asarray(x) for x in ours["all_encoder_layers"]])
    assert_close(layers, theirs["hidden_states"][: len(layers)], "hidden_states")
    assert_close(ours["pooled_output"], theirs["pooler_output"], "pooled_output")
    assert_close(ours["masked_lm_logits"], theirs["prediction_logits"], "masked_lm_logits")
    assert_close(ours["sentence_order_logits"], theirs["sop_logits"], "sentence_order_logits")


def log_probs(logits, features):
    logits = np.take_along_axis(logits, features["masked_lm_positions"][..., None], axis=1)
    logits = logits.reshape(-1, logits.shape[-1]).astype(np.float64)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


@pytest.mark.parametrize("name", CONFIGS)
def test_theirs_here(name, hugging_face, tmp_path):
    config, folder = CONFIGS[name], tmp_path / "theirs"
    save(hugging_face, config, folder)
    assert albert_tf.load_config(folder) == config
    model = albert_tf.AlbertForPreTraining(config)
    report = albert_tf.load_weights(model, folder)
    assert report.missing == report.unused == ()
    features = models.inputs(config)
    theirs = run(hugging_face, "AlbertForPreTraining", folder, features, tmp_path)
    assert_same_outputs(model(features), theirs)

    convert(str(folder), "huggingface", str(tmp_path / "again"))
    before, after = (load_file(tmp_path / d / "model.safetensors") for d in ("theirs", "again"))
    assert set(before) == set(after)
    for key, value in before.items():
        assert value.tobytes() == after[key].tobytes(), key


@pytest.mark.parametrize("name", CONFIGS)
def test_ours_there(name, hugging_face, tmp_path):
    config = CONFIGS[name]
    model = randomise(albert_tf.AlbertForPreTraining(config))
    model.save(tmp_path / "ours.keras")
    convert(str(tmp_path / "ours.keras"), "huggingface", str(tmp_path / "theirs"))
    features = models.inputs(config)
    theirs = run(hugging_face, "AlbertForPreTraining", tmp_path / "theirs", features, tmp_path)
    assert_same_outputs(model(features), theirs)

    again = albert_tf.AlbertForPreTraining(albert_tf.load_config(tmp_path / "theirs"))
    albert_tf.load_weights(again, tmp_path / "theirs")
    models.assert_same_weights(again, model)


@pytest.mark.parametrize(
    ("architecture", "source", "drop"),
    [
        ("AlbertModel", "encoder/base", ["cls/"]),
        ("AlbertForMaskedLM", "encoder/base", ["cls/seq_relationship/", "bert/pooler/"]),
        ("AlbertForSequenceClassification", "heads/classifier", []),
        ("AlbertForSequenceClassification", "heads/stsb", []),
        ("AlbertForQuestionAnswering", "heads/squad_v1", ["bert/pooler/"]),
        ("AlbertForMultipleChoice", "heads/race", []),
    ],
)
def test_the_releases_checkpoints_there(architecture, source, drop, hugging_face, golden, tmp_path):
    """Hidden states and logits are those that the release computed."""
    there = str(tmp_path / "theirs")
    convert(str(golden / source), "huggingface", there, architecture=architecture, drop=drop)
    features = goldens.arrays(golden / source / "inputs.npz")
    if architecture == "AlbertForMultipleChoice":
        names = ("input_ids", "input_mask", "segment_ids")
        features = {name: features[name].reshape(-1, 4, 24) for name in names}
    theirs = run(hugging_face, architecture, tmp_path / "theirs", features, tmp_path)
    expected = goldens.arrays(golden / source / "outputs.npz")
    same = {"start_logits": "start_logits", "end_logits": "end_logits", "logits": "logits"}
    same |= {"last_hidden_state": "sequence_output", "pooler_output": "pooled_output"}
    if architecture == "AlbertForMaskedLM":
        theirs["masked_lm_log_probs"] = log_probs(theirs["logits"], features)
        same["masked_lm_log_probs"] = "masked_lm_log_probs"
    shared = [name for name in same if name in theirs and same[name] in expected]
    assert shared
    for name in shared:
        value = theirs[name].reshape(expected[same[name]].shape)
        np.testing.assert_allclose(value, expected[same[name]], rtol=0, atol=tolerances.OUTPUT)


@pytest.mark.parametrize("name", ["one_group", "groups2"])
def test_their_tagger_here_and_ours_there(name, hugging_face, tmp_path):
    """Without a pooler, and with labels."""
    config, labels = CONFIGS[name], {"0": "O", "1": "B-LOC", "2": "I-LOC"}
    architecture = "AlbertForTokenClassification"
    save(hugging_face, config, tmp_path / "theirs", architecture, id2label=labels)
    features = models.inputs(config)
    theirs = run(hugging_face, architecture, tmp_path / "theirs", features, tmp_path)
    model = albert_tf.AlbertForTokenClassification(albert_tf.load_config(tmp_path / "theirs"), 3)
    assert albert_tf.load_weights(model, tmp_path / "theirs").unused == ()
    assert_close(model(features), theirs["logits"], "logits")

    convert(str(tmp_path / "theirs"), "huggingface", str(tmp_path / "again"))
    again = run(hugging_face, architecture, tmp_path / "again", features, tmp_path)
    np.testing.assert_array_equal(again["logits"], theirs["logits"])
    written = json.loads((tmp_path / "again" / "config.json").read_text())
    assert written["id2label"] == labels


def test_weights_in_shards(hugging_face, tmp_path):
    config = CONFIGS["groups2"]
    for name, size in (("whole", "1GB"), ("other", "4KB")):
        save(hugging_face, config, tmp_path / name, size=size)
    pair = [albert_tf.AlbertForPreTraining(config) for _ in range(2)]
    for model, name in zip(pair, ("whole", "other"), strict=True):
        assert albert_tf.load_weights(model, tmp_path / name).unused == ()
    models.assert_same_weights(*pair)
    assert not (tmp_path / "other" / "model.safetensors").exists()


# Their scripts have no spaces, or marks that Hugging Face's StripAccents takes for accents.
SENTENCES = (
    'हिन्दी में एक वाक्य है, जिसे हम पढ़ते हैं। (कृपया ध्यान दें!) "दिल्ली" में 1,00,000 लोग हैं - सच?',
    'ภาษาไทยเป็นภาษาราชการ (กรุงเทพฯ) มีประชากร 10,500,000 คน, น้ำ ผู้ใหญ่ กำลัง ๒๕๖๗ "สวัสดี" - ครับ/ค่ะ!',
    "中国的首都是北京，人口约2,189万。“你好”——他说：今天天气很好！ 《红楼梦》…… Hello世界",
    'Việt Nam nằm ở phía đông bán đảo Đông Dương. "Xin chào!" – anh ấy nói (năm 1,990). Nguyễn Huệ',
    "Ο ΟΔΟΣ της Ελλάδας, ΣΩΚΡΑΤΗΣ και Σ. 대한민국의 수도는 서울이다. Straße, ﬁn; İstanbul ½ ´ ™",
)
PUNCTUATION = [*"-.'\"", "``", "''", "(", ") ", ", ", "£", " €", "–", "/", "\u00a0", "  ", "1990,"]


def texts_of(golden, count: int) -> list[str]:
    """Draws lines of the golden text with more punctuation, and runs of SENTENCES' words."""
    rng = random.Random(7)
    lines = (golden / "pretrain_data/text.txt").read_text(encoding="utf-8").split("\n")
    texts = []
    for i in range(count):
        words = rng.choice(SENTENCES if i % 5 == 0 else lines).split(" ")
        start = rng.randrange(len(words))
        words = words[start : start + rng.randrange(1, 20)]
        marks = (rng.choice(PUNCTUATION) if rng.random() < 0.3 else " " for _ in words)
        texts.append("".join(part for pair in zip(words, marks, strict=True) for part in pair))
    return texts


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("kind", ["spm_model_file", "vocab_file"])
def test_tokens_there(kind, lower, hugging_face, golden, tmp_path):
    """At most 5 of 5,000 texts differ: two splits have the same score, or a ▁ is within a word."""
    texts, vocabulary = texts_of(golden, 5000), golden / "spm" / "en_small.model"
    if kind == "vocab_file":
        vocabulary = tmp_path / "vocab.txt"
        found = {*" ".join(texts).split(), *"".join(texts).lower(), *"".join(texts)} - {" ", "\xa0"}
        pieces = sorted(piece for word in found for piece in (word, f"##{word}"))
        vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces]))
    tokenizer = albert_tf.Tokenizer(**{kind: vocabulary}, do_lower_case=lower)
    config = goldens.config("base", vocab_size=tokenizer.vocab_size)
    randomise(albert_tf.AlbertModel(config)).save(tmp_path / "ours.keras")
    beside = {kind: str(vocabulary), "do_lower_case": lower}
    convert(str(tmp_path / "ours.keras"), "huggingface", str(tmp_path / "theirs"), **beside)
    found = hugging_face("tokenize", directory=tmp_path / "theirs", texts=texts)["ids"]
    expected = [[tokenizer.cls_id, *tokenizer.encode(text), tokenizer.sep_id] for text in texts]
    differ = [text for text, a, b in zip(texts, found, expected, strict=True) if a != b]
    assert len(differ) <= 5, differ
    # Special pieces in a text are special there, and plain text here.
    special = [tokenizer.cls_id, tokenizer.mask_id, tokenizer.sep_id]
    (found,) = hugging_face("tokenize", directory=tmp_path / "theirs", texts=["[MASK]"])["ids"]
    assert found == special and tokenizer.mask_id not in tokenizer.encode("[MASK]")


def test_accents_stay_there(hugging_face, tmp_path):
    """Composed or not, also in Arabic and Burmese, where composing would reorder marks."""
    words = train_keeping(tmp_path)
    (tmp_path / "theirs").mkdir()
    vocabulary.write_hugging_face(words, str(tmp_path / "theirs"), 512)
    marked = "\u062d\u062f\u0651\u0650\u062b \u1016\u1004\u103a\u1037 \u0e19\u0e49\u0e33"
    texts = [form(text) for text in (*TEXTS, marked) for form in (str, decomposed)]
    found = hugging_face("tokenize", directory=tmp_path / "theirs", texts=texts)["ids"]
    tokenizer = words.tokenizer
    assert [ids[1:-1] for ids in found] == [tokenizer.encode(text) for text in texts]


@pytest.fixture(scope="module")
def manuals():
    """Returns 1,667 texts in each of six languages, from this machine's manuals and messages."""
    found = []
    for language in ("de", "es", "fr", "ru", "ja", "pl", "uk", "sv", "it", "zh_CN"):
        texts = dict.fromkeys([*_messages(language), *_manual(language)])
        if len(texts) >= 1667 and len(found) < 6 * 1667:
            found += random.Random(1).sample([*texts], 1667)
    if len(found) < 6 * 1667:
        pytest.skip("needs manuals or messages in six languages, as packages of Debian have them")
    return found


def _messages(language):
    for path in sorted(pathlib.Path("/usr/share/locale", language).glob("LC_MESSAGES/*.mo")):
        # A few are in older encodings.
        with path.open("rb") as file, contextlib.suppress(UnicodeDecodeError):
            catalog = gettext.GNUTranslations(file)._catalog
            texts = (" ".join(text.split()) for text in catalog.values() if isinstance(text, str))
            yield from (text for text in texts if 20 < len(text) < 1000)


def _manual(language):
    for path in sorted(pathlib.Path("/usr/share/man", language).glob("man*/*.gz")):
        for line in gzip.decompress(path.read_bytes()).decode("utf-8", "ignore").splitlines():
            line = re.sub(r"\\f(?:\[\w*\]|.)|\\", "", line).strip()
            if 20 < len(line) < 1000 and line[0] not in ".'":
                yield line


@pytest.mark.parametrize("keep_accents", [False, True])
def test_manuals_there(keep_accents, manuals, hugging_face, tmp_path):
    """At most 0.1 % of 10,002 texts have other ids: two splits have the same score."""
    (tmp_path / "text.txt").write_text("\n".join(manuals), encoding="utf-8")
    given = {"input_file": tmp_path / "text.txt", "vocab_size": 16000, "keep_accents": keep_accents}
    train(parse(SentencePieceSettings, model_prefix=str(tmp_path / "spiece"), **given))
    words, there = vocabulary.find(str(tmp_path)), tmp_path / "there"
    there.mkdir()
    vocabulary.write_hugging_face(words, str(there), 512)
    theirs = hugging_face("tokenize", directory=there, texts=manuals)
    ours = [words.tokenizer.encode_with_offsets(text) for text in manuals]
    same = [i for i, ids in enumerate(theirs["ids"]) if ids[1:-1] == ours[i][0]]
    assert len(manuals) - len(same) <= len(manuals) / 1000

    # Where ids agree, offsets are those of the tokenizer that transformers makes from the same
    # vocabulary. Ours differ in spaces before words, marks after letters, and characters that stand
    # for several.
    own = hugging_face("tokenize", directory=tmp_path, texts=manuals, name="AlbertTokenizer")
    pairs = [i for i in range(len(manuals)) if own["ids"][i] == theirs["ids"][i]]
    assert len(pairs) > len(manuals) / 4
    assert all(own["offsets"][i] == theirs["offsets"][i] for i in pairs)
    for i in same:
        pieces = words.tokenizer.convert_ids_to_tokens(ours[i][0])
        for piece, *spans in zip(pieces, ours[i][1], theirs["offsets"][i][1:-1], strict=True):
            mine, other = (manuals[i][start:end].strip() for start, end in spans)
            plain = "".join(char for char in mine if not unicodedata.combining(char))
            odd = keep_accents and not unicodedata.is_normalized("NFKC", other)
            assert piece == "▁" or other in (mine, plain) or odd, (piece, mine, other)


def test_entities_there(hugging_face, golden, tmp_path):
    """Entities of a trained tagger, on words that their pipeline finds, too.

    It splits only at spaces, but splits in two a word that is unknown or begins with a lone ▁.
    """
    tokenizer = albert_tf.Tokenizer(golden / "spm" / "en_small.model")
    (alone,), unknown = tokenizer.convert_tokens_to_ids(["▁"]), tokenizer.unk_id
    texts = []
    for line in (golden / "pretrain_data/text.txt").read_text(encoding="utf-8").split("\n"):
        words = [line[begin:end] for begin, end in split_words(line)]
        ids = map(tokenizer.encode, words)
        words = [w for w, i in zip(words, ids, strict=True) if i[0] != alone and unknown not in i]
        if 5 < len(words) < 20 and len(split_words(" ".join(words))) == len(words):
            texts.append(" ".join(words))
    texts = texts[:200]
    tags = ("O", "B-LOC", "I-LOC", "O", "B-PER")
    tagged = ["|".join(f"{word} {tags[len(word) % 5]}" for word in text.split()) for text in texts]
    write(tmp_path / "train.conll", tagged)
    exported = tmp_path / "exported"
    files = {"data_dir": None, "train_file": tmp_path / "train.conll", "export_dir": exported}
    steps = {"train_step": 60, "save_checkpoints_steps": 60, "train_batch_size": 8}
    given = {"do_train": True, "max_seq_length": 64, "learning_rate": 0.02, **files, **steps}
    finetune_runs.main(finetune_runs.command("token_classification", tmp_path, **given))
    convert(str(tmp_path / "out"), "huggingface", str(tmp_path / "theirs"), drop=["bert/pooler/"])

    names = ("type", "start", "end", "probability")
    answers = albert_tf.load_exported(exported)(texts)
    ours = [[[entity[name] for name in names] for entity in each["entities"]] for each in answers]
    theirs = hugging_face("tag", directory=tmp_path / "theirs", texts=texts)["entities"]
    entities = [e for each in answers for e in each["entities"]]
    found = {(e["type"], e["text"].count(" ")) for e in entities}
    assert {("LOC", 0), ("LOC", 1), ("PER", 0)} <= found
    assert [[e[:3] for e in each] for each in theirs] == [[e[:3] for e in each] for each in ours]
    shares = [[e[3] for each in found for e in each] for found in (theirs, ours)]
    np.testing.assert_allclose(*shares, rtol=0, atol=tolerances.PEER_OUTPUT)


def test_ids_of_their_folder(hugging_face, golden, tmp_path):
    """Words behind symbols, numbers before commas, quotes, spaces, sigmas and special pieces."""
    hard = [
        "well-known (x)-y.",
        " a  - b ",
        "``it'' '''s",
        "1,990, 5,",
        "ΟΔΟΣ",
        "…－（a）",
        "[MASK]a [SEP]",
    ]
    hard += [
        "",
        " ",
        "x\r\ny\u2028z",
        "e\u0301 \u200b½ ﬁ",
        "한국어 กำลัง हिन्दी में",
        "- (- a",
        "£5–£6",
    ]
    lines = (golden / "pretrain_data/text.txt").read_text(encoding="utf-8").split("\n")
    texts = [*hard, *filter(None, lines)][:300]
    (tmp_path / "spiece.model").write_bytes((golden / "spm" / "en_small.model").read_bytes())
    asked = {"directory": tmp_path, "texts": texts}
    there = hugging_face("tokenize", name="AlbertTokenizer", added=["("], **asked)
    tokenizer = vocabulary.find(str(tmp_path), ids="folder").tokenizer
    assert [ids[1:-1] for ids in there["ids"]] == tokenizer(texts)
    # In version 5 both texts of a pair have segment 0.
    pairs = [pair for pair in zip(texts[:100], texts[23:123], strict=True) if pair[1].strip()]
    theirs = hugging_face("tokenize_pairs", directory=tmp_path, pairs=pairs)
    rows = [pair_features(tokenizer, *pair, 512) for pair in pairs]
    assert theirs["ids"] == [row["input_ids"].tolist() for row in rows]
    assert theirs["segments"] == [row["segment_ids"].tolist() for row in rows]


ADDED = ["Ent1", "[unused1]"]


@pytest.mark.parametrize("kind", ["BertTokenizer", "AlbertTokenizer"])
def test_tokens_added_there(kind, hugging_face, golden, tmp_path):
    """Within words, next to each other, and in another case, which is not an added token."""
    lines = (golden / "pretrain_data/text.txt").read_text(encoding="utf-8").split("\n")[:2000]
    # Theirs also splits at the release's user-defined pieces.
    texts, added = [re.sub("[-().\"`'£€–]", "", line) for line in lines if line], ADDED
    tokens = [*added, "ent1", "Ent1[unused1]", " Ent1 ", "[unused1] "]
    texts = [text.replace("th", tokens[i % 6], 1 + i % 3) for i, text in enumerate(texts)]
    if kind == "BertTokenizer":
        chars = sorted({*"".join(texts), *"".join(texts).lower()} - {" "})
        pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *added]
        pieces += [*chars, *(f"##{char}" for char in chars), "the", "and", "##ing"]
        (tmp_path / "vocab.txt").write_text("\n".join(pieces), encoding="utf-8")
    else:
        content = (golden / "spm" / "en_small.model").read_bytes()
        model = ModelProto.FromString(content)
        model.pieces.extend(ModelProto.SentencePiece(piece=text, score=-20.0) for text in added)
        (tmp_path / "spiece.model").write_bytes(model.SerializeToString())
    there = hugging_face("tokenize", directory=tmp_path, texts=texts, name=kind, added=added)
    found = vocabulary.find(str(tmp_path))
    assert set(found.tokenizer.added_tokens) == set(added)
    assert [ids[1:-1] for ids in there["ids"]] == found.tokenizer(texts)
    # The same holds for the folder that we write.
    again = tmp_path / "again"
    again.mkdir()
    vocabulary.write_hugging_face(dataclasses.replace(found, fast=None), str(again), 512)
    assert hugging_face("tokenize", directory=again, texts=texts)["ids"] == there["ids"]


@pytest.mark.parametrize("name", ["one_group", "groups2"])
def test_states_and_attention_of_their_model(name, hugging_face, tmp_path):
    config, folder = models.CONFIGS[name], tmp_path / "theirs"
    save(hugging_face, config, folder)
    features = models.inputs(config)
    np.savez(tmp_path / "in.npz", **their_features(features))
    hugging_face("look", directory=folder, inputs=tmp_path / "in.npz", outputs=tmp_path / "out.npz")
    model = inspection_models.load_encoder(ModelLocation(str(folder)))
    states = np.stack(inspection_models.layer_states(model, features))
    with np.load(tmp_path / "out.npz") as found:
        theirs = found["hidden_states"][: len(states)]
        assert_close(states, theirs, "states")
        assert_close(attention.probabilities(model, features), found["attentions"], "attention")
    expected = expected_of(theirs.astype(np.float64), features["input_mask"])
    distances = similarity.measure(model, rows_of(features))
    np.testing.assert_allclose(distances, expected, rtol=0, atol=tolerances.INSPECTED)
