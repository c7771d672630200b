import tracemalloc
import unicodedata

import numpy as np
import pytest

from albert_tf.tasks import alignment

# Of raw texts: letters that stay, change, vanish (U+0301) or become two, and kinds of space.
RAW = list("abAé \t\u00a0") + ["\u0301", "ﬁ", "½"]


def subsequence(letters, joined, half_band):
    """The rule itself, cell by cell: skip a letter, or a joined one if better, or match if better.

    Cells outside of the band, half_band to the left and half_band - 1 to the right, are 0.
    """
    lengths, choices = {}, {}
    for i in range(len(letters)):
        for j in range(max(0, i - half_band), min(len(joined), i + half_band)):
            best, choice = lengths.get((i - 1, j), 0), "up"
            if lengths.get((i, j - 1), 0) > best:
                best, choice = lengths[i, j - 1], "left"
            if letters[i] == joined[j] and lengths.get((i - 1, j - 1), 0) + 1 > best:
                best, choice = lengths.get((i - 1, j - 1), 0) + 1, "match"
            lengths[i, j], choices[i, j] = best, choice
    i, j, pairs = len(letters) - 1, len(joined) - 1, []
    total = lengths.get((i, j), 0)
    while (i, j) in choices:
        if choices[i, j] == "match":
            pairs.append((i, j))
        i, j = i - (choices[i, j] != "left"), j - (choices[i, j] != "up")
    return total, pairs


def common_subsequence(letters, joined):
    half_band = abs(len(letters) - len(joined)) + 5
    total, pairs = subsequence(letters, joined, half_band)
    if total <= 0.8 * len(letters):
        total, pairs = subsequence(letters, joined, 2 * half_band)
    return None if total < 0.8 * len(letters) else pairs


def codes(text: str) -> np.ndarray:
    return np.array([ord(char) for char in text])


def test_the_subsequence_is_the_releases_choice():
    """Random texts and disturbed copies of them: many have several longest subsequences."""
    rng = np.random.default_rng(11)
    found = given_up = 0
    for _ in range(150):
        letters = rng.choice(list("ab "), rng.integers(1, 40))
        keep = rng.random(len(letters)) > rng.choice([0.05, 0.3])
        joined = list(letters[keep]) or ["a"]
        for _ in range(rng.integers(0, 12)):
            joined.insert(rng.integers(0, len(joined) + 1), rng.choice(list("ab ")))
        expected = common_subsequence(letters, joined)
        actual = alignment._common_subsequence(codes("".join(letters)), codes("".join(joined)))
        if expected is None:
            assert actual is None
            given_up += 1
        else:
            assert list(zip(*actual, strict=True)) == expected
            found += 1
    assert found > 50 and given_up > 5


def test_a_long_text_takes_no_table_of_all_its_letters():
    """Spaces that vanish make the band wide: a table of 4,000 letters would have 10 MB."""
    text, joined = codes("a few words  " * 308), codes(" a few words" * 308)
    tracemalloc.start()
    pairs = alignment._common_subsequence(text, joined)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(pairs[0]) > 3600
    assert peak < 2e6


def test_the_shortcut_gives_what_the_long_way_gives():
    rng = np.random.default_rng(12)
    for _ in range(100):
        text = codes("a" + "".join(rng.choice(list("ab "), rng.integers(0, 60))))
        joined = np.concatenate([[ord(" ")], text])
        short, long = alignment._prefixed(text, joined), alignment._common_subsequence(text, joined)
        for mine, other in zip(short, long, strict=True):
            np.testing.assert_array_equal(mine, other[::-1])
    assert alignment._prefixed(codes(" a"), codes("  a")) is None
    assert alignment._prefixed(codes("ab"), codes(" ac")) is None


def spans(text: str, tokens: list[str], lower: bool = True) -> list[str]:
    aligned = alignment.align(text, tokens, lower)
    pairs = zip(aligned.starts, aligned.ends, strict=True)
    return [text[start : end + 1] for start, end in pairs]


@pytest.mark.parametrize(
    ("text", "tokens", "expected"),
    [
        ("Cats sleep.", ["▁cats", "▁sleep", "."], ["Cats", " sleep", "."]),
        # Superfluous spaces go to the piece after them.
        ("Big  cats here", ["▁big", "▁cats", "▁here"], ["Big", "  cats", " here"]),
        # One character of two letters: all of them are given to it.
        ("so ﬁne it is", ["▁so", "▁", "fine", "▁it", "▁is"], ["so", " ", "ﬁne", " it", " is"]),
        # The mark after the e is no piece's.
        ("Cafe\u0301 open", ["▁cafe", "▁open"], ["Cafe", " open"]),
    ],
)
def test_pieces_stand_for_characters(text, tokens, expected):
    assert spans(text, tokens) == expected


def test_an_answer_finds_its_pieces():
    text = "Zoë  Núñez sings."
    tokens = ["▁zoe", "▁nun", "ez", "▁sings", "."]
    aligned = alignment.align(text, tokens, lower=True)
    start = text.index("Núñez")
    assert aligned.piece_starts[start] == 1
    assert aligned.piece_ends[start + len("Núñez") - 1] == 2
    assert aligned.piece_ends[len(text) - 1] == 4
    assert aligned.piece_starts[0] == aligned.piece_ends[2] == 0


def test_letters_are_compared_case_and_all():
    assert alignment.align("ABCDE", ["▁abcde"], lower=True) is not None
    assert alignment.align("ABCDE", ["▁abcde"], lower=False) is None


@pytest.mark.parametrize(
    ("text", "tokens", "lower", "expected"),
    [
        # WordPiece drops spaces and marks what continues a word.
        ("A cat sat on it", ["a", "cat", "sa", "##t", "on", "it"], True, "A|cat|sa|t|on|it"),
        ("Ah, 山水！ B#", ["ah", ",", "山", "水", "！", "b", "#"], True, "Ah|,|山|水|！|B|#"),
        # An unknown word has no letters of its own: not those of [UNK], either.
        (
            "A [un]kempt xyz stood on a hill",
            ["a", "[", "un", "]", "kempt", "[UNK]", "stood", "on", "a", "hill"],
            True,
            "A|[|un|]|kempt| xyz |stood|on|a|hill",
        ),
        ("Zoë ging", ["zoe", "ging"], True, "Zoë|ging"),
        ("Zoë ging", ["Zoë", "ging"], False, "Zoë|ging"),
        # A Hangul syllable is two or three letters of which a piece may hold some.
        ("한국어 책", ["▁한국", "어", "▁책"], True, "한국|어| 책"),
        ("한국어 책", ["▁한", "국어", "▁책"], False, "한|국어| 책"),
        ("한국어 책", ["▁하", "ᆫ국어", "▁책"], True, "한|한국어| 책"),
        ("한국어 책", ["한", "##국어", "책"], True, "한|국어|책"),
        ("한국어 책", ["한국", "##어", "책"], False, "한국|어|책"),
        # Half of these characters are combining marks.
        ("éà ô", ["▁ea", "▁o"], True, "éa| o"),
    ],
)
def test_pieces_of_other_scripts_and_of_wordpiece_are_aligned(text, tokens, lower, expected):
    if tokens[0].startswith("▁"):
        tokens = [unicodedata.normalize("NFKD", token) for token in tokens]
    assert spans(text, tokens, lower) == expected.split("|")


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_an_answer_in_korean_finds_its_pieces(form):
    text = unicodedata.normalize(form, "서울은 한국의 수도이다.")
    tokens = unicodedata.normalize("NFKD", "▁서울|은|▁한국|의|▁수도|이다|.").split("|")
    aligned = alignment.align(text, tokens, lower=True)
    answer = unicodedata.normalize(form, "한국")
    start = text.index(answer)
    assert aligned.piece_starts[start] == 2
    assert aligned.piece_ends[start + len(answer) - 1] == 2
    assert text[aligned.starts[2] : aligned.ends[2] + 1].strip() == answer


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("", ["▁a"]), ("\u0301", []), ("abcdefghij", ["▁zzzzzdefghij"]), ("\u0301\u0301", ["▁"])],
)
def test_what_cannot_be_aligned_gives_none(text, tokens):
    assert alignment.align(text, tokens, lower=True) is None


def test_each_kind_of_character_is_one_letter_or_none():
    letters = alignment._letters("".join(RAW), lower=True)
    none = alignment._NO_LETTER
    expected = [*codes("abae "), ord("\t"), ord(" "), none, none, none]
    assert letters.tolist() == expected
