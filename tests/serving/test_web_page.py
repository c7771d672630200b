"""--format=web: its tokenizer gives our ids, its answers are ours, and the page shows them.

Not tested here: browsers other than Chromium, and characters newer than this Python's Unicode.
"""

import functools
import io
import json
import pathlib
import random

import numpy as np
import pytest
import sentencepiece

import albert_tf
from albert_tf.serving import predict, served_tasks, web_page
from albert_tf.text import vocabulary
from albert_tf.text.sentence_piece import preprocess_text
from albert_tf.text.tokenization import Tokenizer
from albert_tf.text.vocabulary import Vocabulary
from albert_tf.text.word_splitting import split_words
from tests.kit.files import refused
from tests.kit.node import FOLDER, run_node, show_page
from tests.kit.served_tasks import KINDS, ODD, assert_alike, make, model, rows_of
from tests.text.test_folder_ids import tokenizer_json
from tests.text.vocabularies import written

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / "albert_tf/serving/web"
EXAMPLE = ROOT / "examples/web"
# Two runtimes may round the activations of one quantised file to different steps, and the page
# rounds its answer to a thousandth.
INT8_SHARE = 5e-3


def test_a_task_without_a_page_is_refused(vocabulary, tmp_path):
    with refused("`format=web`.* choose", tmp_path, exception=ValueError):
        web_page.save(make("choose", vocabulary), tmp_path / "page")


def test_the_page_loads_the_runtime_that_is_tested():
    versions = json.loads((FOLDER / "package.json").read_text())["dependencies"]
    assert f"/onnxruntime-web@{versions['onnxruntime-web']}/" in web_page._RUNTIME


# A script -> its letters and marks.
SCRIPTS = {
    "Latin": [*range(0x61, 0x7B), *range(0xC0, 0x250), *range(0x300, 0x370)]
    + [*range(0x1E00, 0x1F00)],
    "Greek": [*range(0x386, 0x3E2), *range(0x1F00, 0x1FFF), 0x3A3, 0x3A3, 0x301],
    "Cyrillic": [*range(0x400, 0x530), *range(0x483, 0x488)],
    "Hebrew": [*range(0x5B0, 0x5C8), *range(0x5D0, 0x5EB), *range(0xFB1D, 0xFB50)],
    "Arabic": [*range(0x610, 0x6FF), *range(0xFB50, 0xFBB0), *range(0xFE80, 0xFEF0)],
    "Devanagari": [*range(0x900, 0x980)],
    "Thai": [*range(0xE01, 0xE3B), *range(0xE3F, 0xE5C)],
    "Korean": [*range(0xAC00, 0xB200), *range(0x1100, 0x1200), *range(0xFFA0, 0xFFBF)],
    "Japanese": [*range(0x3041, 0x3100), *range(0x4E00, 0x4F00), *range(0xFF66, 0xFFA0)],
    "Chinese": [*range(0x4E00, 0x5800), *range(0x20000, 0x20200), *range(0xF900, 0xFA00)],
}
SIGNS = " \u00a0\u3000\t0123456789,,,..'\"-()!?:;%&/[]\u2019\u2014\u00ab\u3001\u3002²½℃ﬁ"


@functools.cache
def of_script(script, count=500):
    """Returns texts of random words in a script, with accents, numbers and punctuation."""
    rng = random.Random(script)
    letters = [chr(code) for code in SCRIPTS[script] if chr(code).isprintable()]

    def word():
        return "".join(rng.choices(letters, k=rng.randint(1, 6)))

    words = [word() for _ in range(300)]
    choices = (lambda: rng.choice(words), word, lambda: rng.choice(SIGNS), lambda: "1,990, ")

    def part():
        return rng.choices(choices, weights=(8, 1, 2, 1))[0]() + rng.choice(("", " "))

    return ["".join(part() for _ in range(rng.randint(3, 20))) for _ in range(count)]


def trained(texts=None, **options):
    """Returns a SentencePiece model, by default of all scripts."""
    model = io.BytesIO()
    texts = texts or (text for script in SCRIPTS for text in of_script(script))
    how = {"sentence_iterator": map(preprocess_text, texts), "model_writer": model}
    how |= {"vocab_size": 8000, "hard_vocab_limit": False, "pad_id": 3, "minloglevel": 2}
    how |= {"control_symbols": ["[CLS]", "[SEP]", "[MASK]"], **options}
    sentencepiece.SentencePieceTrainer.train(**how)
    return model.getvalue()


def word_pieces():
    """Returns a WordPiece vocabulary of all scripts' letters."""
    letters = {char for script in SCRIPTS for text in of_script(script) for char in text.lower()}
    letters = sorted(char for char in letters if not char.isspace())
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*special, *letters[::3], *(f"##{char}" for char in letters[1::2]), "ship", "##s"]
    return "".join(f"{piece}\n" for piece in pieces).encode()


def assert_same_ids(path, texts, is_word_piece=False, lower=True, keep_accents=False, words=None):
    kind = "vocab_file" if is_word_piece else "spm_model_file"
    tokenizer = Tokenizer(**{kind: path}, do_lower_case=lower, keep_accents=keep_accents)
    tokenizer = words.tokenizer if words else tokenizer
    options = {"wordPiece": is_word_piece, "lower": lower, "keepAccents": keep_accents}
    options["added"] = tokenizer.added_pattern
    given = "".join(json.dumps(text) + "\n" for text in texts)
    out = run_node(FOLDER / "tokenize.mjs", PAGE, path, json.dumps(options), given=given)
    found = [json.loads(line) for line in out.splitlines()]
    for text, of_page in zip(texts, found, strict=True):
        assert of_page["ids"] == tokenizer.encode(text), text
        ids, offsets = tokenizer.encode_with_offsets(text)
        assert of_page["same"] == ids, text
        assert of_page["offsets"] == offsets.tolist(), text
        assert of_page["words"] == [list(word) for word in split_words(text)], text


@pytest.mark.peers
@pytest.mark.parametrize("version", [4, 5])
def test_ids_of_a_folder(version, tmp_path):
    words = vocabulary.find(written(tmp_path, tokenizer_json(version)), ids="folder")
    texts = [*ODD, "well-known (a ) ", " wéll… ''a", "a  [MASK]a[SEP]", "- 5, 😀-"]
    assert_same_ids(vocabulary.copy(words, str(tmp_path)), texts, words=words)


@pytest.mark.peers
def test_ids_of_english_texts(golden):
    sotu = pytest.importorskip("research.experiments.sotu")
    sentences = [line for address in sotu.load_addresses() for line in address["text"]]
    texts = random.Random(0).sample(sentences, 5000)
    ties = (golden / "tokenization" / "ties_en_small.jsonl").read_text(encoding="utf-8")
    texts += [json.loads(line)["text"] for line in ties.splitlines()]
    assert_same_ids(golden / "spm" / "en_small.model", [*texts, *ODD])


@pytest.mark.peers
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"user_defined_symbols": ["(", "90", "и", "한국"]},
        {"byte_fallback": True, "character_coverage": 0.98},
        # Accents of letters are characters of their own for it, too.
        {"normalization_rule_name": "nfkc"},
        {"normalization_rule_name": "identity", "add_dummy_prefix": False},
        {"remove_extra_whitespaces": False, "split_by_whitespace": False},
    ],
    ids=str,
)
def test_ids_of_ten_scripts(options, tmp_path):
    path = tmp_path / "spiece.model"
    path.write_bytes(trained(**options))
    texts = [text for script in SCRIPTS for text in of_script(script)]
    unknown = Tokenizer(path).unk_id
    known = [i != unknown for text in texts[::50] for i in Tokenizer(path).encode(text)]
    assert np.mean(known) > 0.7
    assert_same_ids(path, [*texts, *ODD])
    if not options:
        for lower in (True, False):
            assert_same_ids(path, [*texts, *ODD], lower=lower, keep_accents=lower)


@pytest.mark.peers
@pytest.mark.parametrize("rules", ["nmt_nfkc", "identity"])  # The former drops a space mark.
def test_pieces_of_a_digit_and_a_comma(rules, tmp_path):
    """They are split, whatever the digit is, with or without a space before them."""
    rng, words = random.Random(0), ["1,", "\u0663,", "21,", "\u0663\u0663,", "x1,y", "word"]
    texts = [" ".join(rng.choices(words, k=8)) for _ in range(300)]
    path = tmp_path / "spiece.model"
    options = {"split_by_unicode_script": False, "split_by_number": False}
    path.write_bytes(trained(texts, normalization_rule_name=rules, **options))
    pieces = Tokenizer(path).convert_ids_to_tokens(range(Tokenizer(path).vocab_size))
    assert {"\u25811,", "\u2581\u0663,", "\u0663,"} <= {*pieces}
    assert_same_ids(path, texts)


@pytest.mark.peers
@pytest.mark.parametrize("form", [(True, False), (True, True), (False, False)])
def test_word_pieces_of_ten_scripts(form, tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes(word_pieces())
    texts = [text for script in SCRIPTS for text in of_script(script)]
    assert_same_ids(path, [*texts, *ODD, "x" * 201 + " ships"], True, *form)


def as_predicted(found, texts):
    """Returns a page's answer in the form of load_exported's."""
    found.pop("labels", None)
    for each in found.get("answers", ()):
        start, end = each.pop("start"), each.pop("end")
        assert units(texts[1])[2 * start : 2 * end].decode("utf-16-le").strip() == each["text"]
    for each in [*found.get("entities", ()), *found.get("words", ())]:
        for name in ("start", "end"):
            each[name] = len(units(texts[0])[: 2 * each[name]].decode("utf-16-le"))
    return found


def units(text):
    return text.encode("utf-16-le")


@pytest.mark.peers
@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.title])
def test_answers_are_ours(name, vocabulary, tmp_path, monkeypatch):
    pytest.importorskip("tf2onnx")
    # Rounding in 8 bits is not the same in both runtimes.
    monkeypatch.setattr(web_page, "_FORMAT", "onnx")
    page, rows = tmp_path / "page", rows_of(KINDS[name])
    web_page.save(make(name, vocabulary), page)
    given = "".join(json.dumps(row) + "\n" for row in rows)
    out = run_node(FOLDER / "answer.mjs", page, given=given)
    found = [json.loads(line) for line in out.splitlines()]
    predictor = predict.load_exported(page)
    for row, of_page in zip(rows, found, strict=True):
        (expected,) = predictor([row])
        assert_alike(as_predicted(of_page, row), dict(expected))


# A model whose outputs are all 0, so that every comparison is between equals.
ZEROS = """
const { Model } = await import(process.argv[2] + "/model.js");
const pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"];
const words = new TextEncoder().encode(pieces.join("\\n"));
const form = { wordPiece: true, lower: true, keepAccents: false };
for (const [task, names, labels, options] of JSON.parse(process.argv[3])) {
  const run = async ({ input_ids: { dims } }) => Object.fromEntries(names.map((name) => {
    const shape = [dims[0], labels.length || dims[1]];
    return [name, { data: new Float32Array(shape[0] * shape[1]), dims: shape }];
  }));
  class Tensor { constructor(type, data, dims) { Object.assign(this, { data, dims }); } }
  const ort = { Tensor, InferenceSession: { create: async () => ({ run }) } };
  const page = { tokenizer: form, kind: { task, labels, ...options } };
  const model = await Model.create(page, ort, words, words);
  console.log(JSON.stringify(await model.answer(["a", "a"].slice(0, task === "classify" ? 1 : 2))));
}
"""


@pytest.mark.peers
def test_what_equals_a_threshold_has_reached_it(tmp_path):
    size = {"max_seq_length": 8}
    spans = {**size, "max_query_length": 2, "doc_stride": 2, "n_best_size": 8}
    spans |= {"max_answer_length": 2, "null_threshold": 0.0}
    names = ["start_logits", "end_logits"]
    asked = [
        ["classify", ["logits"], ["no", "yes"], {**size, "threshold": 0.5}],
        ["classify", ["logits"], ["one", "two"], {**size, "multilabel": True}],
        ["classify", ["logits"], ["one", "two"], {**size, "multilabel": True, "threshold": 0.5}],
        ["answer_v2", names, [], spans],
        ["answer_v2", names, [], {**spans, "null_threshold": 0.5}],
    ]
    (tmp_path / "zeros.mjs").write_text(ZEROS)
    out = run_node(tmp_path / "zeros.mjs", PAGE.as_uri(), json.dumps(asked))
    no, both, too, none, some = map(json.loads, out.splitlines())
    assert (no["label"], both["label"], too["label"]) == ("yes", "one|two", "one|two")
    assert (none["answer"], none["null_odds"], some["answer"]) == ("", 0, "a")


@pytest.mark.peers
@pytest.mark.parametrize("task", ["classify", "fill_mask"])
def test_albert_base_has_less_than_13_mb(task, tmp_path):
    pytest.importorskip("tf2onnx")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(29_995))]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    words = Vocabulary.read(str(tmp_path / "vocab.txt"), is_word_piece=True)
    kind, config = KINDS[task], albert_tf.AlbertConfig.from_json_file("albert_base_v2")
    served = served_tasks.in_graph(model(kind, config), words, kind)
    web_page.save(served, tmp_path / "page")
    sizes = {file.name: file.stat().st_size for file in (tmp_path / "page").iterdir()}
    # The release's spiece.model, of 760,289 bytes, is larger than this vocabulary.
    assert sum(sizes.values()) - sizes["vocab.txt"] + 760_289 < 13e6


@pytest.mark.peers
@pytest.mark.parametrize("cdn", ["", "1"], ids=["runtime beside it", "runtime from its CDN"])
def test_the_example_classifies(cdn, monkeypatch):
    monkeypatch.setenv("CDN", cdn)
    texts = [
        "The Union must be preserved, and the rebellion of the insurgent States suppressed.",
        "Our children need computers and the Internet in every classroom.",
    ]
    *answers, example = show_page(EXAMPLE, *([text] for text in texts), {"press": "Example 2"})
    settings = json.loads((EXAMPLE / "page.json").read_text())
    assert example["typed"] == settings["examples"][1][0]
    labels = ", ".join(settings["kind"]["labels"])
    assert example["about"].startswith(f"{settings['description']} It answers {labels}.")
    for answer, expected in zip(answers, predict.load_exported(EXAMPLE)(texts), strict=True):
        assert answer["chosen"] == [expected["label"]]
        shares = [float(share.removesuffix(" %")) / 100 for share in answer["shares"]]
        assert shares == pytest.approx([*expected["probabilities"].values()], abs=INT8_SHARE)


# The module of albert-serve's page, and a server that always gives the same answer.
SERVED = """
const [page, texts, row] = process.argv.slice(2);
const signature_def = { serving_default: { inputs: { question: 0, context: 0 }, outputs: {} } };
const said = { metadata: { signature_def: { signature_def } }, predictions: [JSON.parse(row)] };
globalThis.location = { href: page };
globalThis.fetch = async () => new Response(JSON.stringify(said));
const model = await (await import(page)).open("v1/models", "squad");
console.log(JSON.stringify(await model.answer(JSON.parse(texts))));
"""


@pytest.mark.peers
@pytest.mark.parametrize(("more", "places"), [({"starts": [12, 8]}, [13, 9]), ({}, [None, 9])])
def test_answers_of_a_server_are_marked_where_they_were_found(more, places, tmp_path):
    """Exports of older releases don't say where answers begin."""
    row = {"answer": "cat", "answers": ["cat", "dog"], "probabilities": [0.75, 0.25], **more}
    given = (["who?", "a cat, \U0001f408dog cat"], row)
    (tmp_path / "served.mjs").write_text(SERVED)
    out = run_node(tmp_path / "served.mjs", f"{PAGE.as_uri()}/server.js", *map(json.dumps, given))
    assert [each.get("start") for each in json.loads(out)["answers"]] == places


@pytest.mark.peers
@pytest.mark.parametrize("task", ["tag", "fill_mask", "answer_v1", "classify"])
def test_a_page_shows_answers(task, vocabulary, tmp_path):
    pytest.importorskip("tf2onnx")
    served, page = make(task, vocabulary), tmp_path / "page"
    web_page.save(served, page)
    texts = {"answer_v1": ["who?", "The Cat sat"], "classify": ["a cat", "a dog"]}
    row = texts.get(task, ["The [MASK] sat, and Anna's dog ran"])
    (shown,) = show_page(page, row)
    (expected,) = predict.load_exported(page)([row])
    if task == "tag":
        assert shown["marks"] == [f"{each['text']} {each['type']}" for each in expected["entities"]]
        assert len(shown["shares"]) == len(expected["entities"])
    elif task == "fill_mask":
        (best,) = expected["masks"]
        names = names_of([each["piece"] for each in best])
        assert shown["marks"] == shown["chosen"] == names[:1]
        assert [name in shown["shown"] for name in names] == [True] * len(names)
    elif task == "answer_v1":
        assert shown["marks"] == shown["chosen"] == [expected["answer"]]
    else:
        assert shown["chosen"] == [expected["label"]]


def names_of(pieces):
    """Returns pieces as people read them: without marks of spaces, or with a dash."""
    if not any(piece[0] == "\u2581" for piece in pieces):
        return pieces
    return [piece[1:] or "(space)" if piece[0] == "\u2581" else f"-{piece}" for piece in pieces]


def test_the_example_has_the_packages_page():
    for file in PAGE.iterdir():
        assert (EXAMPLE / file.name).samefile(file), "make a link to it"
    assert sum(file.stat().st_size for file in EXAMPLE.iterdir()) < 2_500_000
