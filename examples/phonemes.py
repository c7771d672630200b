"""Turns text into lines of phonemes and a vocabulary of their symbols, to pre-train on.

    python examples/phonemes.py --voice=de --output_dir=phonemes book.txt more/*.txt

needs the command espeak-ng (of Debian's package), which pronounces the text. phonemes.txt has a
sentence a line and an empty line between documents, as albert-create-pretraining-data reads it;
spiece.model has a piece for each symbol, the space among them. docs/speech.md goes on from there.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
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
# Symbols that stand for no sound of espeak-ng's nor of Kokoro's -> ALBERT's pieces. PL-BERT, too,
# pads with $, masks with M, and reads unknown symbols as U.
SPECIAL = {"$": "<pad>", "U": "<unk>", "C": "[CLS]", "E": "[SEP]", "M": "[MASK]"}
_MARKS = re.compile(r"([;:,.!?¡¿—…\"«»“”]+)")
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
            # A switch to another language's voice stands in parentheses.
            words = re.sub(r"\([\w-]+\)", "", said.stdout).split()
            parts.append(" " * part[0].isspace() + " ".join(words) + " " * part[-1].isspace())
    return "".join(parts).strip()


def documents(paths: Sequence[str]) -> Iterator[list[str]]:
    """Yields the sentences of each paragraph with more than one."""
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for paragraph in re.split(r"\n\s*\n", file.read()):
                sentences = _SENTENCE.split(" ".join(paragraph.split()))
                if len(sentences) > 1:
                    yield sentences


def write_vocabulary(path: str, symbols: Sequence[str]) -> None:
    """Writes a SentencePiece model in which each symbol is a piece, whatever stands beside it."""
    model = sentencepiece_model_pb2.ModelProto()
    kinds = sentencepiece_model_pb2.ModelProto.SentencePiece
    for place, symbol in enumerate(symbols):
        text, kind = symbol.replace(" ", "▁"), kinds.NORMAL
        if symbol in SPECIAL:
            text = SPECIAL[symbol]
            kind = kinds.UNKNOWN if text == "<unk>" else kinds.CONTROL
        if symbol in symbols[place + 1 :]:  # PL-BERT takes a symbol's last place.
            text, kind = f"[{symbol} below]", kinds.UNUSED
        model.pieces.add(piece=text, score=-1.0, type=kind)
    model.trainer_spec.model_type = sentencepiece_model_pb2.TrainerSpec.UNIGRAM
    model.trainer_spec.vocab_size = len(symbols)
    model.normalizer_spec.name = "identity"
    with open(path, "wb") as file:
        file.write(model.SerializeToString())


def main() -> None:
    """Writes both files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", help="Texts in UTF-8; empty lines separate documents.")
    parser.add_argument("--voice", required=True, help="One of `espeak-ng --voices`, such as de.")
    parser.add_argument("--output_dir", required=True, help="Directory to write to.")
    parser.add_argument(
        "--own_symbols", action="store_true", help="The symbols of this text, not PL-BERT's 178."
    )
    args = parser.parse_args()
    os.makedirs(args.output_dir, exist_ok=True)
    counts: collections.Counter[str] = collections.Counter()

    # Each part of a text is a process that takes milliseconds.
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
