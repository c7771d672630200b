"""Flags and texts that the generator and the trainer of vocabularies refuse, in one line."""

import contextlib
import pathlib
import sys
from unittest import mock

import pytest

from albert_tf import generator
from albert_tf.cli import train_sentencepiece
from albert_tf.generator import documents, sentencepiece, workers
from albert_tf.generator.settings import GeneratorSettings, SentencePieceSettings
from tests.generator import runs
from tests.kit import tiny
from tests.kit.files import all_words, refused

LETTERS = "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])
CHINESE = "大禹治理洪水。\n他是一位国王。\n\n人民爱戴他。\n"
TEXT = {"a.txt": "Some words.\nAnd more.\n"}
GOOD = '{"text": "Good."}\n\n'
# Words that the vocabulary of albert_zh has.
SENTENCE = "我喜欢妈妈做的汤很花呗提额度在哪里可以"
SEGMENTED = {"a.txt": f"{SENTENCE} {SENTENCE}\n" * 20}
ZSTD = "'backports'" if sys.version_info < (3, 14) else ""  # Later Pythons have it.
ZH = {"vocab_file": runs.GOLDEN / "albert_zh" / "vocab.txt", "spm_model_file": None}


def create(**flags):
    """The script must refuse these flags before the work."""

    def call(here):
        with mock.patch.object(workers, "make_part", None):
            runs.make(here, **flags)

    return call


def work(**flags):
    return lambda here: runs.make(here, **{"input_file": "a.txt", "output_file": "out", **flags})


def settings(**given):
    return lambda here: GeneratorSettings.of(input_file="a", output_file="b", **given)


def read(*names, **given):
    names, given = names or ["a.txt"], {"input_file": "", **given}
    return lambda here: list(documents.read_documents(names, documents.TextSettings(**given)))


def train(**flags):
    given = {"input_file": "a.txt", "model_prefix": "v", "vocab_size": 67, **flags}
    return lambda here: train_sentencepiece.main(tiny.parse(SentencePieceSettings, **given))


def untrained(**flags):
    """The script must refuse these flags before the training."""
    return mock.patch.object(sentencepiece, "train", None)(train(**flags))


def without(package, call):
    def call_without(here):
        with mock.patch.dict(sys.modules, {package: None}):
            sys.modules.pop("albert_tf.generator.beam", None)
            with contextlib.suppress(AttributeError):
                del generator.beam
            call(here)

    return call_without


def json_line(line):
    return {"a.txt": GOOD.encode() + (line if isinstance(line, bytes) else line.encode())}


JSON, WIKI, WORDS = read(input_format="jsonl"), read(input_format="wikipedia"), "a.txt, line"
# Files, a call, and words of its error's message, which is one line.
REFUSED = [
    # Flags.
    ({}, settings(single_segment="split", random_next_sentence=True), "`random_next_sentence`"),
    ({}, settings(overflow="carry"), "`overflow=carry` `single_segment=split`"),
    ({}, settings(masking="dynamic", max_examples_per_row=2), "`max_examples_per_row`"),
    ({}, create(input_file="gone/*.txt"), "error: gone/*.txt exist"),
    ({}, create(input_file="s3://b/x"), "error: 's3' not implemented"),
    ({}, create(spm_model_file=None), "error: --spm_model_file --vocab_file"),
    ({}, create(spm_model_file="gone.model"), "error: gone.model exist"),
    ({}, create(output_file=""), "error: --output_file: ''"),
    ({}, create(output_file="a,b,a"), "error: --output_file: twice"),
    ({}, create(output_file="b,~/a"), "error: ~/a ~"),
    ({"out/x": ""}, create(output_file="out"), "error: --output_file: 'out'"),
    (TEXT, create(output_file="a.txt/out"), "error: --output_file: a.txt/out"),
    ({}, create(dupe_factor=0), "error: --dupe_factor=0: positive"),
    ({}, create(block_megabytes=0), "error: --block_megabytes=0: (0,"),
    ({}, create(block_megabytes="nan"), "error: --block_megabytes=nan: number"),
    # Masks would reach only the first 2**16 words of a row.
    ({}, create(max_seq_length=65537), "error: --max_seq_length=65537: 65,536"),
    ({}, create(max_seq_length=4), "error: --max_seq_length=4: >= 5"),
    ({}, create(masked_lm_prob="nan"), "error: --masked_lm_prob=nan: [0, 1]"),
    ({}, create(num_output_shards=2, output_file="a,b"), "error: --num_output_shards=2 2 names"),
    ({}, create(word_starts="x"), "error: --word_starts=x: <latin|unicode>"),
    ({}, create(input_file_mode="w"), "error: --input_file_mode=w: <r|rb>"),
    ({}, create(language="english"), "error: --language 'english'"),
    ({}, without("apache_beam", create(runner="beam")), "error: --runner=beam 'apache_beam'"),
    ({}, without("matplotlib", create(plots=True)), "error: --plots 'matplotlib'"),
    *(
        (
            {**TEXT, "link.txt": pathlib.Path("a.txt")},
            create(input_file="a.txt", output_file=output),
            f"error: --output_file: {pathlib.Path(output).name} input",
        )
        for output in ("a.txt", "./a.txt", "link.txt")
    ),
    # Errors that only the text reveals.
    (
        {"a.txt": CHINESE, "b.txt": b"Some words.\n\n\xff"},  # The second block is never read.
        work(input_file="a.txt,b.txt", num_output_shards=2),
        "error: tokens [UNK], --max_unknown_share=0.1:",
    ),
    (SEGMENTED, work(word_separator="/", **ZH), "error: --word_separator '/' 20 words"),
    (SEGMENTED, work(word_separator=" ", **ZH), "error: --word_separator 40 words 19.0 pieces"),
    ({"a.txt": "the\n\nthe\n"}, work(single_segment="split"), "error: --input_file: no record out"),
    ({"a.txt": "\u0301\n"}, work(), "error: --input_file: no text"),
    ({"a.txt": "One.\n\n" * 3}, work(num_output_shards=5), "error: --input_file: 3 of 5 files"),
    # Files of another kind, and damaged ones.
    ({"a.txt": b"One.\nT\xffwo.\n"}, read(), f"{WORDS} 2 UTF-8 `input_file_mode=rb`"),
    ({}, read("gone.txt"), "gone.txt"),
    ({}, read("ram://gone.txt"), "ram://gone.txt line 0"),
    ({}, without("sentencex", read(input_format="paragraphs")), "`input_format=paragraphs`"),
    (TEXT, without("backports", read("a.txt", "gone.zst")), f"gone.zst {ZSTD}"),
    *(
        ({name: "Text.\n"}, read(name), f"{name} `input_format={kind}`")
        for kind, names in (
            ("jsonl", ("b.jsonl", "b.jsonl.gz", "b.ndjson", "b.json", "b.json.zst")),
            ("parquet", ("b.parquet",)),
        )
        for name in names
    ),
    *(
        ({name: "One."}, read(name, input_format=kind), f"{name} archive")
        for name, kind in (("a.tar", "lines"), ("a.tar.gz", "jsonl"), ("a.tgz", "lines"))
    ),
    (json_line('{"text": "cut of'), JSON, f"{WORDS} 3 JSON"),
    (json_line("[" * 200_000), JSON, f"{WORDS} 3 JSON decoding"),
    (json_line('["text"]'), JSON, f"{WORDS} 3: list"),
    (json_line('{"body": "x", "id": 1}'), JSON, f"{WORDS} 3 'text' 'body', 'id': `text_field`"),
    (json_line("{}"), JSON, f"{WORDS} 3 'text' none: `text_field`"),
    (json_line('{"text": null}'), JSON, f"{WORDS} 3: 'text' NoneType"),
    (json_line('{"text": ["a"]}'), JSON, f"{WORDS} 3: 'text' list"),
    (json_line('{"text": "a\\ud800b"}'), JSON, f"{WORDS} 3 Unicode `input_file_mode=rb`"),
    (json_line(b'{"text": "a\xffb"}'), JSON, f"{WORDS} 3 UTF-8 `input_file_mode=rb`"),
    (json_line('{"text": "' + "word " * 7_000_000), JSON, f"{WORDS} 3 33,554,432 bytes"),
    ({"a.txt": "Just text.\n"}, WIKI, f"{WORDS} 1: <doc ...>, 'Just text.'"),
    ({"a.txt": '<doc id="1">\nA.\n<doc>\nB.\n</doc>'}, WIKI, f"{WORDS} 3: </doc>, '<doc>'"),
    ({"a.txt": '<doc id="1">\nA.\n</doc>\n</doc>'}, WIKI, f"{WORDS} 4: <doc ...>, '</doc>'"),
    ({"a.txt": '\n<doc id="1">\nA.\n'}, WIKI, f"{WORDS} 2: </doc>:"),
    # Texts that no vocabulary can be trained on.
    ({"a.txt": ""}, train(), "error: --input_file: no text"),
    ({"a.txt": " \n\n \u0301\n"}, train(), "error: --input_file: no text"),
    ({"a.txt": "x" * 4193 + "\n"}, train(), "error: --input_file: 4,192 bytes"),
    ({"a.txt": "sea ship\n" * 99}, train(vocab_size=30000), "error: --vocab_size=30000 large most"),
    ({"a.txt": "sea ship\n" * 99}, train(vocab_size=14), "error: --vocab_size=14 --character"),
    (TEXT, train(model_prefix="a.txt/v"), "error: --model_prefix a.txt/v"),
    (TEXT, train(model_prefix="new/"), "error: --model_prefix new/ name"),
    ({**TEXT, "v.model.tmp/x": ""}, train(), "error: --model_prefix v directory"),
]


@pytest.mark.parametrize(("files", "call", "message"), REFUSED)
def test_what_is_refused(files, call, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, content in files.items():
        if isinstance(content, pathlib.Path):
            (tmp_path / name).symlink_to(content)
        else:
            tiny.write(tmp_path / name, content)
    errors = (SystemExit, ValueError, OSError, ImportError)
    with refused(all_words(message), tmp_path, exception=errors):
        call(tmp_path)
