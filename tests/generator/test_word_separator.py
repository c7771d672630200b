"""--word_separator: whole words of text that is already segmented."""

import itertools
import random
import subprocess
import sys

import numpy as np
import pytest

from albert_tf.text.tokenization import Tokenizer
from tests.generator import runs
from tests.generator.record_statistics import read_compact, read_records, restore_text

WORDS = [*("我", "喜欢", "妈妈", "做", "的", "汤", "很", "花呗", "提额度", "在", "哪里", "可以")]
WORDS += ["新闻", "旅游", "教育", "金融", "军事"]


def write(path, separator: str):
    rng = random.Random(5)
    texts = [
        [[*rng.choices(WORDS, k=rng.randint(1, 23)), "2019", "。"] for _ in range(7)]
        for _ in range(11)
    ]
    lines = ["\n".join(separator.join(sentence) for sentence in text) for text in texts]
    path.write_text("\n\n".join(lines), encoding="utf-8")
    return path


ZH = {"vocab_file": runs.GOLDEN / "albert_zh" / "vocab.txt", "spm_model_file": None}


@pytest.fixture(scope="module")
def zh():
    return Tokenizer(vocab_file=ZH["vocab_file"])


@pytest.fixture(params=["vocab_file", "spm_model_file"])
def pieces(request):
    return ZH if request.param == "vocab_file" else {"max_unknown_share": 1}


@pytest.mark.parametrize("separator", [" ", " / ", "｜", "。。"])
def test_the_text_is_as_without_separators(run, pieces, tmp_path, separator):
    plain = read_records([run(input_file=write(tmp_path / "plain.txt", ""), **pieces)])
    text = write(tmp_path / "text.txt", separator)
    records = read_records([run(input_file=text, word_separator=separator, **pieces)])
    np.testing.assert_array_equal(restore_text(records), restore_text(plain))
    assert (records["token_boundary"] != plain["token_boundary"]).any()


def words_of(ids, starts, tokenizer) -> list[str]:
    """Returns the words that begin at the starts, except first and last, which may be cut off."""
    words = []
    for piece, starts_word in zip(tokenizer.convert_ids_to_tokens(ids), starts, strict=True):
        if starts_word:
            words.append("")
        words[-1] += piece.removeprefix("##")
    return words[1:-1]


def test_words_are_those_of_the_text_and_masked_whole(run, zh, tmp_path):
    flags = {"input_file": write(tmp_path / "text.txt", " "), "word_separator": " ", **ZH}
    records = read_records([run(**flags, ngram=1, short_seq_prob=0.5)])
    whole, seen = 0, set()
    for row, length in enumerate(records["input_mask"].sum(1)):
        ids, starts = restore_text(records)[row], records["token_boundary"][row].astype(bool)
        taken = records["masked_lm_positions"][row][records["masked_lm_weights"][row] > 0]
        first_sep = int(np.flatnonzero(ids == zh.sep_id)[0])
        for begin, end in ((1, first_sep), (first_sep + 1, length - 1)):
            starts[begin] = True
            seen.update(words_of(ids[begin:end].tolist(), starts[begin:end], zh))
        edges = np.flatnonzero(starts[:length])
        masked = np.isin(np.arange(length), taken)
        for begin, end in itertools.pairwise([*edges, length]):
            assert masked[begin:end].all() == masked[begin:end].any()
            whole += masked[begin] and end - begin > 1
    assert seen == {*WORDS, "2019", "。"}
    assert whole > 20


def test_masks_drawn_while_training_find_the_same_words(run, pieces, tmp_path):
    flags = {"input_file": write(tmp_path / "text.txt", " "), "word_separator": " ", **pieces}
    masked = read_records([run(**flags)])
    path = run(**flags, masking="dynamic", dupe_factor=None, output_file=tmp_path / "compact")
    _, _, rows = read_compact(path)
    np.testing.assert_array_equal(rows.input_ids, restore_text(masked))
    np.testing.assert_array_equal(rows.token_boundaries(), masked["token_boundary"])


def test_text_that_jieba_has_segmented(run, zh, tmp_path):
    pytest.importorskip("jieba", reason="needs albert_tf[jieba]")
    plain, text = write(tmp_path / "plain.txt", ""), tmp_path / "text.txt"
    plain.write_text(plain.read_text().replace("2019", "abc 2019 abc"))
    command = [sys.executable, "-m", "jieba", "-q", "-d", " ", str(plain)]
    text.write_bytes(subprocess.run(command, check=True, capture_output=True).stdout)
    expected = read_records([run(input_file=plain, **ZH)])
    records = read_records([run(input_file=text, word_separator=" ", **ZH)])
    np.testing.assert_array_equal(restore_text(records), restore_text(expected))
    found = set()
    for ids, starts in zip(restore_text(records), records["token_boundary"], strict=True):
        length = int(np.flatnonzero(ids == zh.sep_id)[-1]) + 1
        found.update(words_of(ids[:length].tolist(), starts[:length], zh))
    assert {"喜欢", "妈妈", "abc", "2019", "新闻", "旅游"} <= found
