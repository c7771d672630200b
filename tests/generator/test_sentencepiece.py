"""The vocabulary trainer: recipe, reproducibility, and how it ends."""

import gzip
import json
import signal

import pytest
import sentencepiece

from albert_tf.cli import train_sentencepiece as command
from albert_tf.generator import sentencepiece as train_sentencepiece
from albert_tf.text import sentence_piece
from albert_tf.text.sentence_piece import Piece, read_model
from albert_tf.text.tokenization import Tokenizer
from tests.kit.tiny import parse

WORDS = [*("sea", "ship", "storm", "sailor", "harbour"), "lantern", "anchor", "whale"]
WORDS += ["Captain", "island"]


@pytest.fixture
def run(tmp_path):
    """Trains on text.txt, with changed flags, and returns the path of the model."""

    def run_with(name="v", **changes):
        given = {"input_file": tmp_path / "text.txt", "model_prefix": tmp_path / name}
        given |= {"vocab_size": 67, **changes}
        command.main(parse(command.SentencePieceSettings, **given))
        return tmp_path / f"{name}.model"

    return run_with


@pytest.fixture
def text_file(tmp_path):
    """331 sentences of words in an order that never repeats, some with accents and capitals."""
    path = tmp_path / "text.txt"
    sentences = [
        f"The {WORDS[i % 7]} saw the {WORDS[3 + i % 5]} \u2013 caf\u00e9  ({WORDS[i % 10]}), {i}."
        for i in range(331)
    ]
    path.write_text("\n\n".join(sentences), encoding="utf-8")
    return path


def test_files_have_the_special_pieces_of_the_release_and_all_scores(run, text_file, tmp_path):
    run("new/folder/vocab")
    prefix = tmp_path / "new" / "folder" / "vocab"
    assert sorted(path.name for path in prefix.parent.iterdir()) == ["vocab.model", "vocab.vocab"]
    # The first pieces of the release's own vocabulary.
    first = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    first += ["(", ")", '"', "-", ".", "\u2013", "\u00a3", "\u20ac"]
    tokenizer = Tokenizer(f"{prefix}.model")
    assert tokenizer.convert_ids_to_tokens(range(13)) == first
    processor = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")
    lines = prefix.with_suffix(".vocab").read_text(encoding="utf-8").splitlines()
    assert len(lines) == tokenizer.vocab_size == 67
    for i, (piece, score) in enumerate(line.split("\t") for line in lines):
        assert piece == processor.id_to_piece(i)
        assert float(score) == pytest.approx(processor.get_score(i), rel=1e-5)


def test_a_sample_of_the_same_text_gives_the_same_file(run, text_file):
    models = [run(name, input_sentence_size=211).read_bytes() for name in ("a", "b")]
    assert models[0] == models[1]


@pytest.mark.parametrize("is_cased", [False, True])
def test_text_is_normalised_as_the_tokenizer_does(run, text_file, tmp_path, is_cased):
    run(vocab_size=61, do_lower_case=not is_cased)
    pieces = (tmp_path / "v.vocab").read_text(encoding="utf-8")
    assert "\u00e9" not in pieces
    assert ("C" in pieces.replace("[CLS]", "")) == is_cased


def test_text_may_be_in_several_files_and_the_generators_formats(run, text_file, tmp_path):
    expected = run("one").read_bytes()
    lines = text_file.read_text(encoding="utf-8").splitlines(keepends=True)
    for i, part in enumerate((lines[:211], lines[211:401], lines[401:])):
        (tmp_path / f"{i}.part").write_text("".join(part), encoding="utf-8")
    parts = f"{tmp_path / '0.part'},{tmp_path / '[12].*'}"
    assert run("three", input_file=parts).read_bytes() == expected
    with gzip.open(tmp_path / "text.jsonl.gz", "wt", encoding="utf-8") as file:
        for i in range(0, len(lines), 14):
            text = "".join(line for line in lines[i : i + 14] if line.strip())
            file.write(json.dumps({"body": text}) + "\n")
    stored = {"input_file": f"{tmp_path}/*.jsonl.gz", "input_format": "jsonl"}
    assert run("jsonl", text_field="body", **stored).read_bytes() == expected


def test_pieces_that_the_release_splits_again_are_never_taken(run, text_file):
    """Within a word the release's rule would leave a space there, which other libraries don't."""
    words = [f"{WORDS[i % 7]}5,{WORDS[i % 5]} 24, {WORDS[i * 7 % 10]}5,-" for i in range(300)]
    text_file.write_text("\n".join([text_file.read_text(encoding="utf-8"), *words]))
    content = (path := run(vocab_size=90)).read_bytes()
    ends = sentence_piece.ends_in_digit_comma
    split = {each.piece: each.type for each in read_model(content).pieces if ends(each.piece)}
    assert "5," in split and {*split.values()} == {Piece.UNUSED}
    assert not sentence_piece.pieces_split_again(content)
    tokens = Tokenizer(path).tokenize("ship5,- 24,,3")
    assert tokens == ["\u2581ship", "5", ",", "-", "\u258124", ",", ",", "3"]


def test_size_beyond_the_text_names_the_largest_one(run, text_file):
    with pytest.raises(SystemExit, match="vocab_size=30000 is too large.* at most (\\d+)") as info:
        run(vocab_size=None)
    assert run(vocab_size=str(info.value).split("at most ")[1].split(",")[0]).exists()


@pytest.mark.parametrize(("coverage", "is_covered"), [("0.98", False), ("1", True)])
def test_rare_characters_get_a_piece_on_request(run, text_file, tmp_path, coverage, is_covered):
    with text_file.open("a", encoding="utf-8") as file:
        file.write(" \u2603")
    run(character_coverage=coverage)
    assert ("\u2603" in (tmp_path / "v.vocab").read_text(encoding="utf-8")) == is_covered


def test_a_sample_of_the_sentences_is_trained_on(run, tmp_path):
    first = 0x4E00
    sentences = [f"{WORDS[i % 7]} {WORDS[i % 5]} {chr(first + i)}" for i in range(331)]
    (tmp_path / "text.txt").write_text("\n".join(sentences), encoding="utf-8")
    run(vocab_size=130, character_coverage=1, input_sentence_size=101)
    pieces = (tmp_path / "v.vocab").read_text(encoding="utf-8")
    assert sum(first <= ord(letter) < first + 331 for letter in pieces) == 101


class Panic(BaseException):
    """Like pyo3's, which is not a subclass of Exception."""


@pytest.mark.parametrize(
    ("stop", "ends", "match"),
    [(Panic, Panic, None), (KeyboardInterrupt, SystemExit, "^error: interrupted$")],
)
def test_no_exception_ends_the_reading(run, text_file, tmp_path, monkeypatch, stop, ends, match):
    """Ctrl-C is reported in one line, a library's panic is raised as it is."""
    normalised = []

    def normalise_or_stop(line, *form):
        normalised.append(line)
        if len(normalised) == 50:
            raise stop
        return line

    monkeypatch.setattr(train_sentencepiece, "preprocess_text", normalise_or_stop)
    with pytest.raises(ends, match=match):
        run()
    assert len(normalised) == 50
    assert not list(tmp_path.glob("v.*"))


@pytest.fixture
def python_sigint():
    """Python's SIGINT handler, which background jobs are started without."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_in_sentencepiece_ends_it(run, text_file, tmp_path, monkeypatch, python_sigint):
    handlers = []

    def train(sentence_iterator, model_writer, **_):
        next(sentence_iterator)
        handlers.append(signal.getsignal(signal.SIGINT))
        assert None not in list(sentence_iterator)
        handlers.append(signal.getsignal(signal.SIGINT))
        raise RuntimeError("nothing trained")

    monkeypatch.setattr(sentencepiece.SentencePieceTrainer, "train", train)
    with pytest.raises(SystemExit, match="nothing trained"):
        run()
    handlers.append(signal.getsignal(signal.SIGINT))
    assert handlers == [python_sigint, signal.SIG_DFL, python_sigint]


def test_sentences_of_more_bytes_than_documented_are_left_out(run, text_file, tmp_path):
    text = text_file.read_text(encoding="utf-8")
    models = []
    for name, longest in (("without", ""), ("more", "\u00df" * 2097), ("most", "\u00df" * 2096)):
        text_file.write_text(f"{text}\n\n{longest}\n", encoding="utf-8")
        # Not lower-cased: a sharp s remains one character, of two bytes.
        run(name, vocab_size=61, do_lower_case=False)
        models.append((tmp_path / f"{name}.vocab").read_bytes())
    assert models[0] == models[1] != models[2]
    assert "4,192 bytes" in command.__doc__
