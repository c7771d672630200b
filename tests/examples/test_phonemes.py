"""The example's functions, with a stand-in for espeak-ng; and that one where it is installed."""

import pathlib
import shutil
import sys

import numpy as np
import pytest

import albert_tf

FOLDER = pathlib.Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    import phonemes

    yield phonemes
    sys.modules.pop("phonemes", None)


def test_ids_are_pl_berts(example, tmp_path):
    path = str(tmp_path / "spiece.model")
    example.write_vocabulary(path, example.SYMBOLS)
    tokenizer = albert_tf.Tokenizer(path, do_lower_case=False, keep_accents=True)
    assert tokenizer.vocab_size == len(example.SYMBOLS) == 178
    special = [tokenizer.pad_id, tokenizer.mask_id, tokenizer.cls_id, tokenizer.sep_id]
    assert special == [example.SYMBOLS.index(symbol) for symbol in "$MCE"]
    # Its dictionary of symbols has the last of two places.
    theirs = {symbol: i for i, symbol in enumerate(example.SYMBOLS)}
    text = "".join(set(example.SYMBOLS) - set(example.SPECIAL) - {" "})
    text = f"ˈn\u0329 {text} a"
    assert tokenizer.encode(text) == [theirs[symbol] for symbol in f" {text}"]
    assert tokenizer.encode("aß") == [theirs[symbol] for symbol in " aU"]
    # A word begins with its space.
    starts = tokenizer.word_starts("unicode")[tokenizer.encode("ˈaɪn̩ ə")]
    np.testing.assert_array_equal(starts, [True, *[False] * 5, True, False])


def test_marks_and_clauses_stay_where_they_were(example, monkeypatch, tmp_path, capsys):
    espeak = tmp_path / "espeak-ng"
    espeak.write_text("#!/bin/sh\ntr 'A-Z ' 'a-z\\n' | sed 's/bonjour/(fr)bɔ̃ʒuʁ(en)/'\n")
    espeak.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert example.pronounce('He said "Bonjour,  Anna": no!', "en") == 'he said "bɔ̃ʒuʁ, anna": no!'
    text = tmp_path / "text.txt"
    text.write_text("One. Two, then.\n\nalone\n\nThree four? Five\n")
    monkeypatch.setattr(
        sys, "argv", ["", "--voice=en", f"--output_dir={tmp_path}/out", "--own_symbols", str(text)]
    )
    example.main()
    lines = (tmp_path / "out" / "phonemes.txt").read_text()
    assert lines == "one.\ntwo, then.\n\nthree four?\nfive\n\n"
    assert "0 unknown" in capsys.readouterr().out
    path = str(tmp_path / "out" / "spiece.model")
    assert albert_tf.Tokenizer(path, do_lower_case=False).vocab_size == 5 + len({*lines} - {"\n"})


@pytest.mark.skipif(not shutil.which("espeak-ng"), reason="needs Debian's espeak-ng")
def test_espeak_pronounces(example):
    assert example.pronounce("Guten Tag, Anna!", "de") == "ɡˈuːtən tˈɑːk, ˈanɑː!"
