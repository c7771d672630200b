"""The vocabulary trainer: recipe, reproducibility, and what it says about bad input."""

import gzip
import json
import signal

import pytest
import sentencepiece

from albert_tf.generator import sentencepiece as train_sentencepiece
from albert_tf.text.tokenization import Tokenizer
from tests.tiny import parse

WORDS = [
    "sea",
    "ship",
    "storm",
    "sailor",
    "harbour",
    "lantern",
    "anchor",
    "whale",
    "Captain",
    "island",
]


def run(*arguments):
    train_sentencepiece.main(parse(train_sentencepiece.SentencePieceSettings, *arguments))


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


def test_special_pieces_have_the_ids_of_the_release(text_file, tmp_path):
    prefix = tmp_path / "new" / "folder" / "vocab"
    run(f"--input_file={text_file}", f"--model_prefix={prefix}", "--vocab_size=67")
    tokenizer = Tokenizer(spm_model_file=f"{prefix}.model")
    assert tokenizer.vocab_size == 67
    # The first pieces of the release's own vocabulary.
    first = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    first += ["(", ")", '"', "-", ".", "\u2013", "\u00a3", "\u20ac"]
    assert tokenizer.convert_ids_to_tokens(range(13)) == first
    assert sorted(path.name for path in prefix.parent.iterdir()) == ["vocab.model", "vocab.vocab"]


def test_vocab_file_lists_the_pieces_and_scores_of_the_model(text_file, tmp_path):
    run(f"--input_file={text_file}", f"--model_prefix={tmp_path / 'v'}", "--vocab_size=67")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "v.model"))
    lines = (tmp_path / "v.vocab").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 67
    for i, line in enumerate(lines):
        piece, score = line.split("\t")
        assert piece == processor.id_to_piece(i)
        assert float(score) == pytest.approx(processor.get_score(i), rel=1e-5)


@pytest.mark.parametrize("options", [[], ["--input_sentence_size=211"]])
def test_same_text_gives_the_same_file(text_file, tmp_path, options):
    models = []
    for name in ("a", "b"):
        run(
            f"--input_file={text_file}",
            f"--model_prefix={tmp_path / name}",
            "--vocab_size=67",
            *options,
        )
        models.append((tmp_path / f"{name}.model").read_bytes())
    assert models[0] == models[1]


@pytest.mark.parametrize(("option", "is_cased"), [("", False), ("--nodo_lower_case", True)])
def test_text_is_normalised_as_the_tokenizer_does(text_file, tmp_path, option, is_cased):
    options = [option] if option else []
    run(
        f"--input_file={text_file}", f"--model_prefix={tmp_path / 'v'}", "--vocab_size=61", *options
    )
    pieces = (tmp_path / "v.vocab").read_text(encoding="utf-8")
    assert "\u00e9" not in pieces
    assert ("C" in pieces.replace("[CLS]", "")) == is_cased


def test_several_files_and_patterns(text_file, tmp_path):
    folder = tmp_path / "parts"
    folder.mkdir()
    lines = text_file.read_text(encoding="utf-8").splitlines(keepends=True)
    for i, part in enumerate((lines[:211], lines[211:401], lines[401:])):
        (folder / f"{i}.txt").write_text("".join(part), encoding="utf-8")
    parts = f"{folder / '0.txt'},{folder / '[12].*'}"
    run(f"--input_file={text_file}", f"--model_prefix={tmp_path / 'one'}", "--vocab_size=67")
    run(f"--input_file={parts}", f"--model_prefix={tmp_path / 'three'}", "--vocab_size=67")
    assert (tmp_path / "one.model").read_bytes() == (tmp_path / "three.model").read_bytes()


def test_text_may_be_stored_in_the_formats_of_the_generator(text_file, tmp_path):
    lines = text_file.read_text(encoding="utf-8").split("\n\n")
    with gzip.open(tmp_path / "text.jsonl.gz", "wt", encoding="utf-8") as file:
        for i in range(0, len(lines), 7):
            file.write(json.dumps({"body": "\n".join(lines[i : i + 7])}) + "\n")
    run(f"--input_file={text_file}", f"--model_prefix={tmp_path / 'lines'}", "--vocab_size=67")
    run(
        f"--input_file={tmp_path}/*.jsonl.gz",
        "--input_format=jsonl",
        "--text_field=body",
        f"--model_prefix={tmp_path / 'jsonl'}",
        "--vocab_size=67",
    )
    assert (tmp_path / "lines.model").read_bytes() == (tmp_path / "jsonl.model").read_bytes()
    with pytest.raises(SystemExit, match="error: .*text.jsonl.gz, line 1"):
        run(
            f"--input_file={tmp_path}/*.jsonl.gz",
            "--input_format=jsonl",
            f"--model_prefix={tmp_path / 'v'}",
        )


def test_size_beyond_the_text_names_the_largest_one(text_file, tmp_path):
    arguments = [f"--input_file={text_file}", f"--model_prefix={tmp_path / 'v'}"]
    with pytest.raises(SystemExit, match="vocab_size=30000 is too large.* at most (\\d+)") as info:
        run(*arguments)
    assert not list(tmp_path.glob("v.*"))
    largest = str(info.value).split("at most ")[1].split(",")[0]
    run(*arguments, f"--vocab_size={largest}")
    assert (tmp_path / "v.model").exists()


def test_size_below_the_characters(text_file, tmp_path):
    with pytest.raises(SystemExit, match=r"vocab_size=23 is too small: .* alone need \d+"):
        run(f"--input_file={text_file}", f"--model_prefix={tmp_path / 'v'}", "--vocab_size=23")


def test_a_coverage_that_is_no_number(text_file, tmp_path):
    with pytest.raises(SystemExit, match=r"^error: .*--character_coverage=nan: nan is not a"):
        arguments = [f"--input_file={text_file}", f"--model_prefix={tmp_path / 'v'}"]
        run(*arguments, "--character_coverage=nan")


@pytest.mark.parametrize(("coverage", "is_covered"), [("0.98", False), ("1", True)])
def test_rare_characters_get_a_piece_on_request(text_file, tmp_path, coverage, is_covered):
    with text_file.open("a", encoding="utf-8") as file:
        file.write(" \u2603")
    arguments = [f"--input_file={text_file}", f"--model_prefix={tmp_path / 'v'}"]
    run(*arguments, "--vocab_size=67", f"--character_coverage={coverage}")
    assert ("\u2603" in (tmp_path / "v.vocab").read_text(encoding="utf-8")) == is_covered


def test_a_sample_of_the_sentences_is_trained_on(tmp_path):
    first = 0x4E00
    sentences = [f"{WORDS[i % 7]} {WORDS[i % 5]} {chr(first + i)}" for i in range(331)]
    path = tmp_path / "text.txt"
    path.write_text("\n".join(sentences), encoding="utf-8")
    arguments = [f"--input_file={path}", f"--model_prefix={tmp_path / 'v'}", "--vocab_size=130"]
    run(*arguments, "--character_coverage=1", "--input_sentence_size=101")
    pieces = (tmp_path / "v.vocab").read_text(encoding="utf-8")
    assert sum(first <= ord(letter) < first + 331 for letter in pieces) == 101


def test_text_in_another_encoding_is_refused_unless_told_to_drop_it(text_file, tmp_path):
    text = text_file.read_bytes()
    run(f"--input_file={text_file}", f"--model_prefix={tmp_path / 'a'}", "--vocab_size=67")
    text_file.write_bytes(text.replace(b"saw", b"s\xe4aw"))
    arguments = [f"--input_file={text_file}", f"--model_prefix={tmp_path / 'b'}", "--vocab_size=67"]
    with pytest.raises(SystemExit, match="^error: .*text.txt, line 1 is not UTF-8 .*_mode=rb"):
        run(*arguments)
    run(*arguments, "--input_file_mode=rb")
    assert (tmp_path / "a.model").read_bytes() == (tmp_path / "b.model").read_bytes()


def test_missing_file(text_file, tmp_path):
    with pytest.raises(SystemExit, match="nowhere.* does not exist"):
        run(f"--input_file={text_file},{tmp_path}/nowhere*", f"--model_prefix={tmp_path / 'v'}")


def test_a_prefix_that_cannot_be_written_is_found_before_the_work(text_file, tmp_path, monkeypatch):
    monkeypatch.setattr(train_sentencepiece, "train", lambda *_, **__: pytest.fail("it trains"))
    with pytest.raises(SystemExit, match="^error: --model_prefix .*text.txt/v can't be written"):
        run(f"--input_file={text_file}", f"--model_prefix={text_file}/v")
    with pytest.raises(SystemExit, match="^error: --model_prefix .*/ has no file name: give"):
        run(f"--input_file={text_file}", f"--model_prefix={tmp_path}/")
    (tmp_path / "v.model.tmp").mkdir()
    with pytest.raises(SystemExit, match="^error: --model_prefix .* Is a directory.: give an"):
        run(f"--input_file={text_file}", f"--model_prefix={tmp_path / 'v'}")


def test_a_file_system_that_is_not_there(tmp_path):
    with pytest.raises(SystemExit, match="^error: File system scheme 's3' not implemented"):
        run("--input_file=s3://b/x", f"--model_prefix={tmp_path / 'v'}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no text"),
        (" \n\n \u0301\n", "no text"),
        ("x" * 4193 + "\n", "every line has more than 4,192 bytes"),
    ],
)
def test_nothing_to_train_on(tmp_path, text, message):
    path = tmp_path / "text.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit, match=f"error: --input_file: .*{message}"):
        run(f"--input_file={path}", f"--model_prefix={tmp_path / 'v'}")


@pytest.mark.parametrize("vocab_size", [67, 30000])
def test_an_error_in_the_midst_of_the_text_ends_the_training(tmp_path, vocab_size):
    path = tmp_path / "text.jsonl"
    rows = [json.dumps({"text": f"The {WORDS[i % 7]} saw {i} ships."}) for i in range(99)]
    path.write_text("\n".join([*rows[:49], "{", *rows[49:]]))
    arguments = ["--input_format=jsonl", f"--vocab_size={vocab_size}"]
    with pytest.raises(SystemExit, match="^error: [^\n]*text.jsonl, line 50[^\n]*$"):
        run(f"--input_file={path}", f"--model_prefix={tmp_path / 'v'}", *arguments)
    assert not list(tmp_path.glob("v.*"))


class Panic(BaseException):
    """As pyo3's, which is no Exception."""


@pytest.mark.parametrize(
    ("stop", "ends", "match"),
    [(Panic, Panic, None), (KeyboardInterrupt, SystemExit, "^error: interrupted$")],
)
def test_what_is_no_exception_ends_the_reading(text_file, tmp_path, monkeypatch, stop, ends, match):
    """Ctrl-C in one line, a library's panic as it is."""
    normalised = []

    def normalise_or_stop(line, lower):
        normalised.append(line)
        if len(normalised) == 50:
            raise stop
        return line

    monkeypatch.setattr(train_sentencepiece, "preprocess_text", normalise_or_stop)
    with pytest.raises(ends, match=match):
        run(f"--input_file={text_file}", f"--model_prefix={tmp_path / 'v'}", "--vocab_size=67")
    assert len(normalised) == 50
    assert not list(tmp_path.glob("v.*"))


@pytest.fixture
def python_sigint():
    """Python's handler of SIGINT, which jobs in the background are started without."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_while_sentencepiece_trains_ends_the_process(
    text_file, tmp_path, monkeypatch, python_sigint
):
    handlers = []

    def train(sentence_iterator, model_writer, **_):
        next(sentence_iterator)
        handlers.append(signal.getsignal(signal.SIGINT))
        assert None not in list(sentence_iterator)
        handlers.append(signal.getsignal(signal.SIGINT))
        raise RuntimeError("nothing trained")

    monkeypatch.setattr(sentencepiece.SentencePieceTrainer, "train", train)
    with pytest.raises(SystemExit, match="nothing trained"):
        run(f"--input_file={text_file}", f"--model_prefix={tmp_path / 'v'}", "--vocab_size=67")
    handlers.append(signal.getsignal(signal.SIGINT))
    assert handlers == [python_sigint, signal.SIG_DFL, python_sigint]


def test_sentences_of_more_bytes_than_documented_are_left_out(text_file, tmp_path):
    text = text_file.read_text(encoding="utf-8")
    models = []
    for name, longest in (("without", ""), ("more", "\u00df" * 2097), ("most", "\u00df" * 2096)):
        text_file.write_text(f"{text}\n\n{longest}\n", encoding="utf-8")
        prefix = tmp_path / name
        # Not lower-cased: a sharp s remains one, of two bytes.
        options = ["--vocab_size=61", "--nodo_lower_case"]
        run(f"--input_file={text_file}", f"--model_prefix={prefix}", *options)
        models.append((tmp_path / f"{name}.vocab").read_bytes())
    assert models[0] == models[1] != models[2]
    assert "4,192 bytes" in train_sentencepiece.__doc__


def test_unexpected_argument():
    with pytest.raises(SystemExit, match="^error: unexpected arguments: text.txt"):
        run("--input_file=a", "--model_prefix=b", "text.txt")
