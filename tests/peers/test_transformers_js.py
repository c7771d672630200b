"""Hugging Face directories with ONNX files answer in @huggingface/transformers as we do."""

import importlib.util
import json
import shutil

import numpy as np
import pytest

import albert_tf
from albert_tf import export
from albert_tf.answers.classify import Classify
from albert_tf.answers.fill import Fill
from albert_tf.answers.span import Span
from albert_tf.answers.tag import Tag
from albert_tf.conversion.convert import convert
from albert_tf.serving import predict, transformers_onnx
from tests.kit import goldens, tiny, tolerances
from tests.kit.node import FOLDER, run_node

pytestmark = pytest.mark.peers

TEXTS = ["Crème brûlée, in 1,024 cafés ☃!", "the quick 2,5 % fox", "``It's'' -- e\u0301té 漢字"]
MASKED = ["The [MASK] of Zoë.", "[MASK] was in 1,990", "Say [MASK] to it"]
QUESTION = ["Who is it, in 1,000 words?", "It was Zoë's 1,024 café. They met in 1990, at sea."]
WORDS = "Crème cafés in 1,024 harbours"
LABELS = ("ADJ", "NOUN", "X")
TAGGER = "AlbertForTokenClassification"
# Directory -> the model, its class there, the weights left out, and the names of its classes.
MODELS = {
    "classify": (albert_tf.AlbertForSequenceClassification, None, (), LABELS),
    "fill_mask": (albert_tf.AlbertForPreTraining, None, (), ()),
    "features": (albert_tf.AlbertForPreTraining, "AlbertModel", ("cls/",), ()),
    "answer": (albert_tf.AlbertForQuestionAnswering, None, ("bert/pooler/",), ()),
    "tag": (albert_tf.AlbertForTokenClassification, TAGGER, ("bert/pooler/",), LABELS),
}
ASKED = [
    ("classify", "text-classification", TEXTS, {"top_k": None}),
    ("several", "text-classification", TEXTS, {"top_k": None}),
    ("fill_mask", "fill-mask", MASKED, {"top_k": 5}),
    ("fill_mask", "feature-extraction", TEXTS, {"pooling": "mean"}),
    ("features", "feature-extraction", TEXTS, {"pooling": "mean"}),
    ("answer", "question-answering", [QUESTION], {}),
    ("tag", "token-classification", [WORDS], {"ignore_labels": []}),
]


@pytest.fixture(scope="module")
def models(vocabulary, tmp_path_factory):
    for package in ("onnxruntime", "tf2onnx"):
        pytest.importorskip(package)
    folder, made = tmp_path_factory.mktemp("models"), {}
    size = vocabulary.tokenizer.vocab_size
    config = goldens.config("base", vocab_size=size, num_hidden_layers=2)
    for name, (model_class, architecture, drop, labels) in MODELS.items():
        sizes = {"num_labels": len(labels)} if labels else {}
        made[name] = model = tiny.randomise(model_class(config, **sizes))
        stored = tiny.store(folder / "ours" / name, model, labels)
        shutil.copy(vocabulary.path, folder / "ours" / name)
        how = {"architecture": architecture, "drop": drop, "complete": transformers_onnx.write}
        said = convert(stored, "huggingface", str(folder / name), **how)
        assert "onnx/model_quantized.onnx: outputs differ by up to" in said
    shutil.copytree(folder / "classify", folder / "several")
    text = (folder / "several" / "config.json").read_text()
    assert "single_label" in text
    (folder / "several" / "config.json").write_text(text.replace("single_label", "multi_label"))
    return folder, {**made, "several": made["classify"]}


@pytest.fixture(scope="module")
def answers(models):
    folder, _ = models
    asked = [(*each, "fp32") for each in ASKED] + [(*ASKED[0], "q8")]
    requests = [
        {"directory": str(folder / name), "task": task, "inputs": inputs, "options": options}
        | {"do": "answer", "dtype": dtype}
        for name, task, inputs, options, dtype in asked
    ]
    requests.append({"do": "ids", "directory": str(folder / "fill_mask"), "inputs": TEXTS})
    given = "".join(json.dumps(request) + "\n" for request in requests)
    out = run_node(FOLDER / "pipelines.js", given=given)
    found = [json.loads(line) for line in out.split("\n")[:-1]]
    keys = [(name, task, dtype) for name, task, _, _, dtype in asked]
    return dict(zip([*keys, "ids"], found, strict=True))


def close(expected, tolerance=tolerances.PEER_OUTPUT):
    return pytest.approx(expected, rel=0, abs=tolerance)


def test_tokenizers_agree(answers, vocabulary):
    tokenizer = vocabulary.tokenizer
    for ids, text in zip(answers["ids"], TEXTS, strict=True):
        assert ids == [tokenizer.cls_id, *tokenizer.encode(text), tokenizer.sep_id]


CLASSIFIED = [("classify", "fp32"), ("classify", "q8"), ("several", "fp32")]


@pytest.mark.parametrize("name, dtype", CLASSIFIED)
def test_classes(models, answers, vocabulary, name, dtype):
    tolerance = tolerances.INT8_OUTPUT if dtype == "q8" else tolerances.PEER_OUTPUT
    kind = Classify(labels=LABELS, multilabel=name == "several", max_seq_length=64)
    served = export.Classifier(models[1][name], vocabulary, kind)
    theirs = answers[name, "text-classification", dtype]
    for found, expected in zip(theirs, predict.from_model(served)(TEXTS), strict=True):
        scores = {each["label"]: each["score"] for each in found}
        assert scores == close(expected["probabilities"], tolerance)


def filler(models, name, vocabulary):
    served = export.MaskFiller(models[1][name], vocabulary, Fill(max_seq_length=64))
    return predict.from_model(served)


def test_masked_words_and_features(models, answers, vocabulary):
    served = filler(models, "fill_mask", vocabulary)(MASKED)
    for found, expected in zip(answers["fill_mask", "fill-mask", "fp32"], served, strict=True):
        ids = vocabulary.tokenizer.convert_tokens_to_ids([e["piece"] for e in expected["masks"][0]])
        assert [each["token"] for each in found] == ids
        shares = [each["probability"] for each in expected["masks"][0]]
        assert [each["score"] for each in found] == close(shares)
    for name in ("fill_mask", "features"):
        model = filler(models, name, vocabulary)
        vectors = np.concatenate(answers[name, "feature-extraction", "fp32"])
        np.testing.assert_allclose(vectors, model.embed(TEXTS), rtol=0, atol=tolerances.PEER_OUTPUT)


@pytest.mark.parametrize("name", ["fill_mask", "features"])
def test_sentence_transformers_takes_the_directory_as_it_is(models, vocabulary, hugging_face, name):
    if importlib.util.find_spec("sentence_transformers") is None:  # Importing it loads torch.
        pytest.skip("sentence_transformers is not installed: make test-peers installs it")
    model = filler(models, name, vocabulary)
    found = hugging_face("embed", directory=models[0] / name, texts=TEXTS)["vectors"]
    np.testing.assert_allclose(found, model.embed(TEXTS), rtol=0, atol=tolerances.PEER_OUTPUT)


def test_questions(models, answers, vocabulary):
    """The span of the best two positions; its score is the product of their probabilities."""
    model, (found,) = models[1]["answer"], answers["answer", "question-answering", "fp32"]
    kind = Span(max_query_length=30, max_seq_length=64)
    served = export.QuestionAnswerer(model, vocabulary, kind)
    tokenizer = vocabulary.tokenizer
    (expected,) = predict.from_model(served)([QUESTION])
    assert tokenizer.encode(found["answer"]) == tokenizer.encode(expected["answer"])
    features = albert_tf.Preprocessor(vocabulary)([QUESTION[0]], [QUESTION[1]])
    ids, outputs = features["input_ids"][0], model(features)
    may = (features["segment_ids"][0] * features["input_mask"][0] == 1) & (ids != tokenizer.sep_id)
    may[0] = True
    shares = []
    for name in ("start_logits", "end_logits"):
        logits = np.where(may, np.asarray(outputs[name][0], np.float64), -np.inf)
        share = np.exp(logits - logits.max())
        share /= share.sum()
        share[0] = 0
        shares.append(share)
    assert found["score"] == close(np.triu(np.outer(*shares)).max())


def test_tags_as_of_another_model_type(models, answers, vocabulary):
    """Every piece has a tag; a word's tag is that of its first piece."""
    kind = Tag(labels=LABELS, max_seq_length=64)
    served = export.Tagger(models[1]["tag"], vocabulary, kind)
    (expected,) = predict.from_model(served)([WORDS])
    ((found),) = answers["tag", "token-classification", "fp32"]
    by_place, place = {each["index"]: each for each in found}, 1
    for word in expected["words"]:
        piece = by_place[place]
        assert piece["entity"] == word["tag"]
        assert piece["score"] == close(word["probability"])
        place += len(vocabulary.tokenizer.encode(word["text"]))
