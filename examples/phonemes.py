"""Turns text into lines of phonemes and a vocabulary of their symbols, to pre-train on.

    python examples/phonemes.py --voice=de --output_dir=phonemes book.txt more/*.txt

needs the command espeak-ng (of Debian's package), which pronounces the text. phonemes.txt has a
sentence a line and an empty line between documents, as albert-create-pretraining-data reads it;
spiece.model has a piece for each symbol, the space among them. With --num_words it writes what
examples/phoneme_words.py reads instead: train.jsonl and heldout.jsonl, documents of words' phonemes
and ids, and words.txt, where a word's line is its id. docs/speech.md goes on from there.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence

from sentencepiece import sentencepiece_model_pb2

# The symbols of PL-BERT, StyleTTS2 and Kokoro, by id: padding, marks, letters, IPA. Source:
# text_utils.py of github.com/yl4579/PL-BERT.
SYMBOLS = (
    '$;:,.!?¡¿—…"«»“” '
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    "ɑɐɒæɓʙβɔɕçɗɖðʤəɘɚɛɜɝɞɟʄɡɠɢʛɦɧħɥʜɨɪʝɭɬɫɮʟɱɯɰŋɳɲɴøɵɸθœɶʘɹɺɾɻʀʁɽʂʃʈʧʉʊʋⱱʌɣɤʍχʎʏʑʐʒʔʡʕʢǀǁǂǃ"
    "ˈˌːˑʼʴʰʱʲʷˠˤ˞↓↑→↗↘'\u0329'ᵻ"
)
# Symbols that are no sound in espeak-ng or Kokoro -> ALBERT's special pieces. PL-BERT, too,
# pads with $, masks with M, and reads unknown symbols as U.
SPECIAL = {"$": "<pad>", "U": "<unk>", "C": "[CLS]", "E": "[SEP]", "M": "[MASK]"}
MARKS = ';:,.!?¡¿—…"«»“”'
_MARKS = re.compile(f"([{MARKS}]+)")
_WORD = re.compile(rf"\w+(?:['’-]\w+)*|[{MARKS}]")
# Stand for unknown words and for the space after a word, as in PL-BERT's vocabulary.
UNKNOWN, SPACE = "<unk>", "<formula>"
# One document in this many is held out.
HELD_OUT = 20
_SENTENCE = re.compile(r"(?<=[.!?…])\s+")


def pronounce(text: str, voice: str) -> str:
    """Returns a text's phonemes, with its marks where they stood."""
    parts = []
    for part in _MARKS.split(" ".join(text.split())):
        if _MARKS.fullmatch(part):
            parts.append(part)
        elif any(map(str.isalnum, part)):
            command = ["espeak-ng", "-q", "--ipa", "-v", voice, "--stdin"]
            said = subprocess.run(command, input=part, capture_output=True, text=True, check=True)
            words = _without_switches(said.stdout).split()
            parts.append(" " * part[0].isspace() + " ".join(words) + " " * part[-1].isspace())
    return "".join(parts).strip()


def _without_switches(phonemes: str) -> str:
    """Takes out the names of other languages' voices, which stand in parentheses."""
    return re.sub(r"\([\w-]+\)", "", phonemes)


def pronounce_words(words: Sequence[str], voice: str) -> list[str]:
    """Returns each word's phonemes when pronounced alone; punctuation marks stay as they are."""
    command = ["espeak-ng", "-q", "--ipa", "-v", voice]
    text = "".join(f"{word}\n" for word in words)
    said = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    lines = _without_switches(said.stdout).splitlines()
    # espeak-ng prints a line per clause: find a word of several clauses by bisection.
    if len(lines) != len(words) > 1:
        half = len(words) // 2
        return pronounce_words(words[:half], voice) + pronounce_words(words[half:], voice)
    lines = lines if len(words) > 1 else [" ".join(lines)]
    pairs = zip(words, lines, strict=True)
    return [word if word in MARKS else " ".join(line.split()) for word, line in pairs]


def documents(paths: Sequence[str]) -> Iterator[list[str]]:
    """Yields the sentences of each paragraph with more than one."""
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for paragraph in re.split(r"\n\s*\n", file.read()):
                sentences = _SENTENCE.split(" ".join(paragraph.split()))
                if len(sentences) > 1:
                    yield sentences


def write_vocabulary(path: str, symbols: Sequence[str]) -> None:
    """Writes a SentencePiece model in which each symbol is always a piece of its own."""
    model = sentencepiece_model_pb2.ModelProto()
    kinds = sentencepiece_model_pb2.ModelProto.SentencePiece
    for place, symbol in enumerate(symbols):
        text, kind = symbol.replace(" ", "▁"), kinds.NORMAL
        if symbol in SPECIAL:
            text = SPECIAL[symbol]
            kind = kinds.UNKNOWN if text == "<unk>" else kinds.CONTROL
        if symbol in symbols[place + 1 :]:  # PL-BERT uses a symbol's last id.
            text, kind = f"[{symbol} below]", kinds.UNUSED
        model.pieces.add(piece=text, score=-1.0, type=kind)
    model.trainer_spec.model_type = sentencepiece_model_pb2.TrainerSpec.UNIGRAM
    model.trainer_spec.vocab_size = len(symbols)
    model.normalizer_spec.name = "identity"
    with open(path, "wb") as file:
        file.write(model.SerializeToString())


def write_words(args: argparse.Namespace) -> None:
    """Writes documents as words' phonemes and ids, and the vocabulary of words."""
    # The words of the texts, their counts in lower case, and their pronunciations.
    texts = [_WORD.findall(" ".join(sentences)) for sentences in documents(args.files)]
    counts = collections.Counter(word.lower() for words in texts for word in words)
    different = sorted({word for words in texts for word in words})
    spoken: dict[str, str] = {}
    for start in range(0, len(different), 1000):
        part = different[start : start + 1000]
        spoken.update(zip(part, pronounce_words(part, args.voice), strict=True))

    # Ids are ranks by frequency, or those of a given vocabulary.
    if args.words_file:
        with open(args.words_file, encoding="utf-8") as file:
            vocabulary = file.read().rstrip("\n").split("\n")
    else:
        vocabulary = [UNKNOWN, SPACE]
        vocabulary += [word for word, _ in counts.most_common(args.num_words - 2)]
    ids = {word: i for i, word in enumerate(vocabulary)}
    if not {UNKNOWN, SPACE} <= ids.keys():
        raise SystemExit(f"{args.words_file}: expected lines {UNKNOWN} and {SPACE}: add them")
    lines = []
    for words in texts:
        words = [word for word in words if spoken[word]]
        of_words = [ids.get(word.lower(), ids[UNKNOWN]) for word in words]
        document = {"phonemes": [spoken[word] for word in words], "input_ids": of_words}
        lines.append(json.dumps(document, ensure_ascii=False))
    held_out = lines[::HELD_OUT]
    del lines[::HELD_OUT]
    for name, content in (
        *(("train.jsonl", lines), ("heldout.jsonl", held_out)),
        ("words.txt", vocabulary),
    ):
        with open(os.path.join(args.output_dir, name), "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in content)
    known = sum(count for word, count in counts.items() if word in ids)
    print(
        f"{args.output_dir}: {len(lines):,} and {len(held_out):,} documents, {counts.total():,} "
        f"words; {known / counts.total():.1%} are among the {len(ids):,} of words.txt"
    )


def main() -> None:
    """Writes the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", help="Texts in UTF-8; empty lines separate documents.")
    parser.add_argument("--voice", required=True, help="One of `espeak-ng --voices`, such as de.")
    parser.add_argument("--output_dir", required=True, help="Directory to write to.")
    parser.add_argument(
        "--own_symbols", action="store_true", help="The symbols of this text, not PL-BERT's 178."
    )
    parser.add_argument("--num_words", type=int, help="Different words to predict, at most.")
    parser.add_argument("--words_file", help="Words by id, such as PL-BERT's, instead.")
    args = parser.parse_args()
    os.makedirs(args.output_dir, exist_ok=True)
    if args.num_words or args.words_file:
        write_words(args)
        return
    counts: collections.Counter[str] = collections.Counter()

    # Each sentence is pronounced in its own process, which takes milliseconds.
    with (
        open(os.path.join(args.output_dir, "phonemes.txt"), "w", encoding="utf-8") as file,
        concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool,
    ):
        for sentences in documents(args.files):
            lines = [*filter(None, pool.map(pronounce, sentences, [args.voice] * len(sentences)))]
            file.write("\n".join(lines) + "\n\n")
            counts.update("".join(lines))

    symbols = SYMBOLS
    if args.own_symbols:
        symbols = "".join([*SPECIAL, *sorted({*counts, " "} - {*SPECIAL})])
    write_vocabulary(os.path.join(args.output_dir, "spiece.model"), symbols)
    unknown = {char: n for char, n in counts.items() if char not in symbols or char in SPECIAL}
    print(
        f"{args.output_dir}: {counts.total():,} symbols of {len(counts)} kinds, "
        f"{sum(unknown.values()):,} unknown {dict(sorted(unknown.items()))}"
    )


if __name__ == "__main__":
    main()
