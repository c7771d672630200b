"""keep_accents: marks that tell words apart stay, from the vocabulary's training on.

Not tested here: the graph and Hugging Face's tokenizers, which are in their own tests.
"""

import functools
import json
import unicodedata

import pytest

from albert_tf.cli import train_sentencepiece
from albert_tf.generator import settings
from albert_tf.text import vocabulary
from albert_tf.text.tokenization import Tokenizer, describe_fit, describe_lack
from tests.kit.tiny import parse
from tests.text.vocabularies import word_pieces

TEXTS = [
    "Con mèo má mà mả mã mạ ngồi trên chiếc ghế gỗ của bà tôi.",
    "Tiếng Việt có sáu thanh: ngang, huyền, sắc, hỏi, ngã, nặng.",
    "मैं हर दिन स्कूल जाता हूँ और हिन्दी पढ़ता हूँ।",
    "कृपया दरवाज़ा बंद कर दीजिए, बाहर ठंड है।",
    "ภาษาไทยมีวรรณยุกต์ ห้าเสียง น้ำ นำ น่า น้า",
    "Die Tür ist für größere Gäste zu öffnen; schöne Grüße aus Köln.",
]
decomposed = functools.partial(unicodedata.normalize, "NFD")


def train(folder, **changes):
    (folder / "text.txt").write_text("\n".join(TEXTS * 20), encoding="utf-8")
    given = {"input_file": folder / "text.txt", "model_prefix": folder / "own/v"}
    given |= {"vocab_size": 138, **changes}
    train_sentencepiece.main(parse(settings.SentencePieceSettings, **given))


def train_keeping(folder):
    """Trains a vocabulary that keeps accents, and returns it as later commands find it."""
    train(folder, keep_accents=True)
    return vocabulary.find(str(folder / "own"))


def test_words_that_differ_in_marks_have_different_ids(tmp_path, caplog):
    keeping = train_keeping(tmp_path)
    assert keeping.form == (True, True)
    tokenizer, losing = keeping.tokenizer, Tokenizer(keeping.path)
    tones = ["má", "mà", "mả", "mã", "mạ"]
    assert len({tuple(ids) for ids in tokenizer(tones)}) == 5
    assert len({tuple(ids) for ids in losing(tones)}) == 1
    assert tokenizer.decode(tokenizer(TEXTS[5])) == TEXTS[5].lower()
    assert tokenizer([*map(decomposed, TEXTS)]) == tokenizer(TEXTS)
    # Each way to read text has its own digest.
    assert tokenizer.digest not in (losing.digest, Tokenizer(keeping.path, None, False).digest)
    said = caplog.text
    assert "pieces a word" in said and "lose a mark" not in said
    said = describe_fit(losing, TEXTS)
    assert "% of its letters lose a mark (" in said and "): `keep_accents` keeps them" in said
    assert "lose" not in describe_fit(losing, ["plain text", "of ASCII letters"])


def test_it_is_not_advised_where_the_vocabulary_lacks_the_letters(golden):
    """The release's text was stripped of marks, so that words with marks would be unknown."""
    model = golden / "spm" / "en_small.model"
    plain, marked = (Tokenizer(model, None, True, keep) for keep in (False, True))
    texts = ["The cafe\u0301 of Zoe\u0308 is here", *["All other words are plain."] * 9]
    advice = "(é ë): a vocabulary trained with `keep_accents` keeps them"
    assert describe_fit(plain, texts).endswith(advice)
    lack = "[UNK]: the vocabulary lacks \u25cc\u0301 \u25cc\u0308; without `keep_accents` letters"
    assert lack in describe_lack(marked, texts)
    assert describe_lack(plain, texts) == describe_lack(marked, texts[1:] * 40 + texts) == ""


@pytest.mark.parametrize("form", [str, decomposed])
def test_an_answer_keeps_them(form, tmp_path):
    """A piece stands for the characters of the text, as the answers of squad_text do."""
    tokenizer = train_keeping(tmp_path).tokenizer
    for text in map(form, TEXTS):
        ids, spans = tokenizer.encode_with_offsets(text)
        assert ids == tokenizer.encode(text)
        assert "".join(text[begin:end] for begin, end in spans).split() == text.split()


def test_it_is_stored_for_all_vocabularies_of_a_directory(tmp_path, caplog):
    train(tmp_path, vocab_size=110)
    assert "lose a mark" in caplog.text
    config = tmp_path / "own" / "tokenizer_config.json"
    assert not config.exists()
    train_keeping(tmp_path)
    assert json.loads(config.read_text()) == {"do_lower_case": True, "keep_accents": True}
    with pytest.raises(SystemExit, match="differs in do_lower_case or keep_accents"):
        train(tmp_path, model_prefix=tmp_path / "own/other")
    assert not (tmp_path / "own" / "other.model").exists()


@pytest.mark.parametrize(
    "lower, keep, piece", [(True, True, 5), (True, False, 6), (False,) * 2 + (5,)]
)
def test_accents_of_word_pieces(lower, keep, piece, tmp_path):
    path = word_pieces(tmp_path, "f\u00fcr", "fur")
    text = "F\u00fcr" if lower else "f\u00fcr"
    assert Tokenizer(None, path, lower, keep)(text) == [piece]


def test_accents_of_word_pieces_stay_for_hugging_face(tmp_path):
    words = vocabulary.Vocabulary.read(word_pieces(tmp_path, "f\u00fcr"), True, True, True)
    vocabulary.write_hugging_face(words, str(tmp_path), 512)
    names = ("pad", "unk", "cls", "sep", "mask")
    assert json.loads((tmp_path / "tokenizer_config.json").read_text()) == {
        **{f"{name}_token": f"[{name.upper()}]" for name in names},
        "do_lower_case": True,
        "strip_accents": False,
        "model_max_length": 512,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    assert vocabulary.find(str(tmp_path)).form == (True, True)
    (tmp_path / "vocab.txt").unlink()
    assert vocabulary.find(str(tmp_path)).form == (True, True)
