"""Tokenisation in the graph against albert_tf.Tokenizer and the release's own output.

The graph has the Unicode version of the Python that exports: it treats every code point alike.
"""

import dataclasses
import functools
import json
import random
import sys
import time
import unicodedata

import pytest
import tensorflow as tf

from albert_tf.serving.graphs import tokenizer as graph_tokenizer
from albert_tf.text import tokenization, vocabulary
from albert_tf.text.tokenization import Tokenizer
from albert_tf.text.vocabulary import Vocabulary
from tests.kit import tiny
from tests.text.test_folder_ids import tokenizer_json
from tests.text.test_tokenization import CHINESE
from tests.text.vocabularies import trained, written

pytestmark = pytest.mark.usefixtures("eager")  # SavedModels of test_formats.py have graphs.

NUM_STRINGS = 30_000
SEED = 20190926

WORD_PIECES = [*CHINESE, "σ", "ς", "α", "##α", "b"]
ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" * 3 + " " * 20,
    "the of and in to a, . ' 's - ",
    "0123456789,,,. ",
    " \t\n\r\x0b\x0c\x1c\x1f\x85\xa0\u2003\u2028\u3000\u200b\ufeff",
    "áÀçßİıǅﬁ½²①㎏ﷺ\u0301\u0323\u0345\u093f각각Ωſ",
    "ΑΣσςαΟΔ'.’:\u00ad\u0301 Σ",
    "中国豈日本語。、！",
    "[MASK][CLS]<pad><unk>▁##$€£",
)


@functools.cache
def generated_strings(count: int = NUM_STRINGS) -> list[str]:
    """Returns texts of up to four runs, each of an alphabet or of any code points at all.

    They hold more distinct characters, pairs of them, and pairs and triples of Unicode categories
    than as many texts of hypothesis, which is a hundred times slower.
    """
    draw = random.Random(SEED)

    def run() -> str:
        letters, size = draw.choice((*ALPHABETS, None)), draw.randint(1, 12)
        if letters is None:
            return "".join(code_point(draw) for _ in range(size))
        return "".join(draw.choices(letters, k=size))

    return ["".join(run() for _ in range(draw.randint(1, 4))) for _ in range(count)]


def code_point(draw: random.Random) -> str:
    """Returns any character but surrogates, low code points more often than high ones."""
    while True:
        point = draw.randrange(draw.choice((0x80, 0x3000, 0x10000, sys.maxunicode + 1)))
        if not 0xD800 <= point < 0xE000:
            return chr(point)


def in_graph(vocabulary):
    """Returns a function that maps texts to lists of ids, as a graph of any batch size."""
    split = graph_tokenizer.build(vocabulary)
    spec = tf.TensorSpec([None], tf.string)
    function = as_graph(lambda texts: split(texts).ids, input_signature=[spec])
    return lambda texts: function(tf.constant(texts, tf.string)).to_list()


# No function here has Python control flow for AutoGraph to rewrite.
as_graph = functools.partial(tf.function, autograph=False)


def different(vocabulary, texts):
    """Returns the texts that the graph splits differently, with its ids and Python's."""
    encode = vocabulary.tokenizer.encode
    rows = zip(texts, in_graph(vocabulary)(texts), strict=True)
    return [(text, ids, encode(text)) for text, ids in rows if ids != encode(text)]


def word_piece_vocabulary(tmp_path, do_lower_case):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(WORD_PIECES) + "\n", encoding="utf-8")
    return Vocabulary.read(str(path), is_word_piece=True, do_lower_case=do_lower_case)


@pytest.mark.parametrize("name", ["en_small", "ties_en_small", "en30k", "en30k_nolower"])
def test_golden_strings(name, golden, vocabulary, request):
    """In ties_en_small, two splits have the same score: the original's is taken."""
    if name.startswith("en30k"):
        path = str(request.getfixturevalue("spm_30k"))
        vocabulary = Vocabulary.read(path, False, do_lower_case=name == "en30k")
    lines = (golden / "tokenization" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    names = vocabulary.tokenizer.convert_ids_to_tokens
    for row, ids in zip(rows, in_graph(vocabulary)([row["text"] for row in rows]), strict=True):
        assert ids == row["ids"] if "ids" in row else names(ids) == row["tokens"]


@pytest.mark.slow
def test_generated_strings(vocabulary, tmp_path):
    texts = generated_strings()
    assert len(set(texts)) > 0.95 * NUM_STRINGS
    assert different(vocabulary, texts) == []
    long_words = ["a" * 200, "a" * 201, "中" * 201, "hello " + "ﷺ" * 150]
    for do_lower_case in (True, False):
        word_pieces = word_piece_vocabulary(tmp_path, do_lower_case)
        assert different(word_pieces, [*texts[: NUM_STRINGS // 4], *long_words]) == []
    for words in (vocabulary, word_pieces):
        keeping = Vocabulary.read(words.path, words.is_word_piece, True, keep_accents=True)
        assert different(keeping, texts[: NUM_STRINGS // 20]) == []


@pytest.mark.parametrize("do_lower_case", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_every_code_point_is_treated_as_in_python(golden, do_lower_case):
    """By itself, and beside a sigma, whose lower-case form depends on its neighbours."""
    path = str(golden / "spm" / "en_small.model")
    vocabulary = Vocabulary.read(path, False, do_lower_case)
    split = graph_tokenizer.build(vocabulary)
    chars = map(chr, range(sys.maxunicode + 1))
    assigned = [char for char in chars if unicodedata.category(char) not in ("Cn", "Co", "Cs")]
    texts = [f"x{char} y" for char in assigned]
    if do_lower_case:
        texts += [text for c in assigned for text in (f"A{c}Σ", f"AΣ{c}b")]
    normalized = as_graph(lambda t: split.normalize(t).texts)(tf.constant(texts)).numpy()
    preprocess = vocabulary.tokenizer.preprocess
    pairs = zip(texts, normalized, strict=True)
    assert [ascii(text) for text, found in pairs if found.decode() != preprocess(text)] == []


def test_runs_of_sigmas_take_linear_time(vocabulary):
    """In quadratic time, 400 kB took 14 s."""
    texts = ["Σ" * 200_000, "ΑΣ " * 60_000, "aΣ" + "." * 200_000, "aΣ" + "." * 200_000 + "b"]
    normalize = graph_tokenizer.build(vocabulary).normalize
    start = time.process_time()
    normalized = as_graph(lambda t: normalize(t).texts)(tf.constant(texts)).numpy()
    assert time.process_time() - start < 7
    assert [text.decode() for text in normalized] == [*map(vocabulary.tokenizer.preprocess, texts)]


def test_bytes_that_are_not_utf8_go(vocabulary):
    texts = [b"a\xffb", b"\xed\xa0\x80c", b"caf\xc3", b"\xf4\x90\x80\x80", b"\xef\xbb\xbfa\x00b"]
    assert in_graph(vocabulary)(texts) == [vocabulary.tokenizer.encode(text) for text in texts]


def test_lower_case_does_not_depend_on_the_locale(vocabulary):
    """TensorFlow's own operations turn I into a dotless i in a process with a Turkish locale."""
    split = graph_tokenizer.build(vocabulary)
    spec = tf.TensorSpec([None], tf.string)
    function = as_graph(lambda texts: split(texts).ids.values, input_signature=[spec])
    graph = function.get_concrete_function().graph.as_graph_def()
    nodes = [*graph.node, *(node for part in graph.library.function for node in part.node_def)]
    assert nodes and not {"StringLower", "StringUpper"} & {node.op for node in nodes}
    assert in_graph(vocabulary)(["IN"]) == [vocabulary.tokenizer.encode("in")]


def test_no_texts(vocabulary, tmp_path):
    for words in (vocabulary, word_piece_vocabulary(tmp_path, True)):
        split = graph_tokenizer.build(words)
        assert split(tf.constant([], tf.string)).ids.to_list() == []
        assert split(tf.constant(["", " "])).ids.to_list() == [[], []]


# fmt: off
WORDS = [
    "Ajax", "the", "1,990,", "2,0", "x_1", "Zoë", "Rene\u0301", "U.S.", "ﾊﾞｯｸ", "한국어", "中国",
    "ไทยกุ้ง", "हिन्दी", "مُحَمَّد", "ﬁn½", "ΟΔΟΣ", "🏳️‍🌈", "\u200bа\u0306\u0323", "ᠮᠣᠩ", "ꦗꦮ", "𐌰𐌿",
    "İ", "\u0301", "￼",
]
# fmt: on
# Separators from tables, JSON, markup and code, and an empty one.
BETWEEN = [" ", " | ", " |\n| ", '",\n    "', "&nbsp;</td>\t<td>", "\r\n\treturn ", "\u3000 ", ""]


def laid_out_texts(count: int) -> list[str]:
    """Returns words of many scripts, with signs and white space between and around them."""
    draw = random.Random(SEED)
    found = []
    for _ in range(count):
        parts = (draw.choice(WORDS) + draw.choice(BETWEEN) for _ in range(draw.randint(2, 12)))
        found.append("".join(parts)[draw.randint(0, 3) :])
    return found


CASED = pytest.param("cased", 1000, marks=pytest.mark.slow)


@pytest.mark.parametrize(("kind", "count"), [("spm", 4000), ("uncased", 1000), CASED])
def test_pieces_have_their_places_as_in_python(vocabulary, tmp_path, kind, count):
    if kind != "spm":
        vocabulary = word_piece_vocabulary(tmp_path, kind == "uncased")
    texts = [*laid_out_texts(count), *generated_strings()[:1000]]
    pieces = graph_tokenizer.build(vocabulary)(tf.constant(texts))
    starts, ends = pieces.starts.to_list(), pieces.ends.to_list()
    wrong = []
    for text, *found in zip(texts, pieces.ids.to_list(), starts, ends, strict=True):
        ids, offsets = vocabulary.tokenizer.encode_with_offsets(text)
        if found != [ids, *offsets.T.tolist()]:
            wrong.append((text, found, ids, offsets.T.tolist()))
    assert wrong == []


def test_a_vocabulary_without_a_comma_is_refused(tmp_path):
    content = trained(["a b c d e f g h"] * 20, vocab_size=24)
    model = tiny.write(tmp_path / "no_comma.model", content)
    vocabulary = Vocabulary.read(model, is_word_piece=False)
    with pytest.raises(ValueError, match=r"no_comma.model has no piece for the comma"):
        graph_tokenizer.build(vocabulary)


@pytest.mark.parametrize(("kind", "limited"), [("SentencePiece", []), ("WordPiece", [5])])
def test_long_texts_are_read_from_the_start_only(kind, limited, vocabulary, tmp_path, monkeypatch):
    """Each text of a batch is read only as far as needed. Small limits allow short texts here."""
    for module in (tokenization, graph_tokenizer):
        monkeypatch.setattr(module, "CHARACTERS_PER_PIECE", 1)
        monkeypatch.setattr(module, "GROWTH", 2)
        monkeypatch.setattr(module, "LONGEST_WORD", 64)
    if kind == "WordPiece":
        vocabulary = word_piece_vocabulary(tmp_path, True)
    graph, tokenizer = graph_tokenizer.build(vocabulary), vocabulary.tokenizer
    texts = [
        "",
        "The House of Representatives",
        "to be or not to be " * 50,
        "\u3000" * 30 + "one" + " " * 300 + "two",
        "a" * 70 + " b",
        "a" * 300 + " b",
        "of the " * 30 + "a" * 70,
        "\u03a3" * 200,
        "\u4e2d\u56fd" * 100,
        # The letter after the apostrophe, the 14th, decides which lower-case sigma precedes it.
        "aaaaaaaaaa\u0391\u03a3'\u0391 hello hello",
    ]
    read = as_graph(functools.partial(graph.first, most=13))
    found = read(tf.constant(texts)).to_list()
    assert found == [tokenizer.encode(text, 13) for text in texts]
    assert found[5] == tokenizer.encode("a" * 64, 13)
    # The limit on a word's length changes no other text.
    whole = [tokenizer.encode(text)[:13] for text in texts]
    assert [i for i, ids in enumerate(whole) if ids != found[i]] == limited


@pytest.mark.parametrize("version", [4, 5])
def test_ids_of_a_folder(version, tmp_path):
    """Added tokens, white space at ends, and offsets are those of Tokenizer."""
    words = vocabulary.find(written(tmp_path, tokenizer_json(version)), ids="folder")
    tokenizer, graph = words.tokenizer, graph_tokenizer.build(words)
    symbols = ("-", " (", "known ", "wéll", "…", "[MASK]", " ", "a", "''", "5, ", "Σ", ".")
    draw = random.Random(version)
    texts = ["", *("".join(draw.choices(symbols, k=draw.randint(1, 9))) for _ in range(300))]
    pieces, heads = graph(tf.constant(texts)), graph.first(tf.constant(texts), 3).to_list()
    places = tf.stack([pieces.starts.values, pieces.ends.values], axis=1)
    found = pieces.ids.with_values(places).to_list()
    for text, ids, head, spans in zip(texts, pieces.ids.to_list(), heads, found, strict=True):
        expected, offsets = tokenizer.encode_with_offsets(text)
        assert (ids, head, spans) == (expected, expected[:3], offsets.tolist()), text


def test_added_tokens_of_word_pieces(tmp_path):
    """The longest one matches; parts before, between and after them are split separately."""
    path = tiny.write(tmp_path / "vocab.txt", "\n".join([*WORD_PIECES, "[E1]", "[E1]b"]))
    made = Vocabulary.read(path, True)
    tokenizer = Tokenizer(vocab_file=path, added_tokens=["[E1]", "[E1]b"])
    graph = graph_tokenizer.build(dataclasses.replace(made, tokenizer=tokenizer))
    texts = ["", "[E1]", "b[E1]bb α[E1][e1] σ", "b b"]
    assert graph(tf.constant(texts)).ids.to_list() == tokenizer(texts)
    assert graph.first(tf.constant(texts), 2).to_list() == [ids[:2] for ids in tokenizer(texts)]
