"""Trains a SentencePiece vocabulary on your own text, with the options of ALBERT's release.

python data/train_sentencepiece.py --input_file='text/*.txt' --model_prefix=vocab/30k-clean

writes vocab/30k-clean.model, which --spm_model_file of every other script takes, and
vocab/30k-clean.vocab, its pieces with their scores to look at. Pieces 0 to 4 are <pad>, <unk>,
[CLS], [SEP] and [MASK]. The same text gives the same files.
"""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Iterator, Sequence

import sentencepiece
import tensorflow as tf
from absl import app, flags

from albert_tf import errors, files, scripts
from albert_tf.generator import documents
from albert_tf.generator.flags import define_text_flags, read_text_settings
from albert_tf.text.tokenization import preprocess_text

# The release's spm_train command line (its README, section SentencePiece).
RECIPE = {
    "model_type": "unigram",
    "pad_id": 0,
    "unk_id": 1,
    "bos_id": -1,
    "eos_id": -1,
    "control_symbols": ["[CLS]", "[SEP]", "[MASK]"],
    "user_defined_symbols": ["(", ")", '"', "-", ".", "–", "£", "€"],
    "shuffle_input_sentence": True,
}
RANDOM_SEED = 12345


def define_flags(flag_values: flags.FlagValues) -> None:
    """Adds this script's flags to `flag_values`."""
    define_text_flags(flag_values)
    flags.DEFINE_string(
        "model_prefix",
        None,
        "Where to write: PREFIX.model and PREFIX.vocab.",
        flag_values=flag_values,
        required=True,
    )
    flags.DEFINE_integer(
        "vocab_size", 30000, "Number of pieces.", lower_bound=1, flag_values=flag_values
    )
    flags.DEFINE_float(
        "character_coverage",
        0.99995,
        "Share of the text's characters that get a piece of their own; rarer ones are <unk>.",
        lower_bound=0.0,
        upper_bound=1.0,
        flag_values=flag_values,
    )
    flags.DEFINE_bool(
        "do_lower_case",
        True,
        "Whether to lower-case: as for the model to come.",
        flag_values=flag_values,
    )
    flags.DEFINE_integer(
        "input_sentence_size",
        10_000_000,
        "Train on a random sample of so many sentences where there are more.",
        lower_bound=1,
        flag_values=flag_values,
    )


def read_sentences(
    files: Sequence[str], settings: documents.TextSettings, do_lower_case: bool
) -> Iterator[str]:
    """Yields normalised sentences of the files, one at a time, without the empty ones."""
    for document in documents.read_documents(files, settings):
        for line in document.sentences:
            sentence = preprocess_text(line, lower=do_lower_case)
            if sentence:
                yield sentence


def train(
    files: Sequence[str],
    settings: documents.TextSettings,
    vocab_size: int,
    character_coverage: float,
    do_lower_case: bool,
    input_sentence_size: int,
) -> bytes:
    """Trains a model with the release's recipe.

    Returns:
      The model file's content.

    Raises:
      ValueError: If there is no text, it is not of its format, or it can't have a vocabulary of
        that size.
      OSError: If a file can't be read.
    """
    if next(read_sentences(files, settings, do_lower_case), None) is None:
        raise ValueError(f"--input_file: there is no text in {', '.join(files)}")
    model = io.BytesIO()
    sentencepiece.set_random_generator_seed(RANDOM_SEED)
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=read_sentences(files, settings, do_lower_case),
            model_writer=model,
            vocab_size=vocab_size,
            character_coverage=character_coverage,
            input_sentence_size=input_sentence_size,
            minloglevel=1,
            **RECIPE,
        )
    except RuntimeError as error:
        raise ValueError(_explain(str(error), vocab_size)) from error
    return model.getvalue()


def _explain(message: str, vocab_size: int) -> str:
    """Says in this script's flags what sentencepiece complains about."""
    if found := re.search(r"Vocabulary size too high .* <= (\d+)", message):
        return (
            f"--vocab_size={vocab_size} is too large for this text: the largest possible size is "
            f"{found[1]} (or give more text)"
        )
    if found := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return (
            f"--vocab_size={vocab_size} is too small: the characters and special pieces alone "
            f"need {found[1]} (or lower --character_coverage)"
        )
    if "sentences_.empty()" in message:
        return "--input_file: every line is too long: put one sentence on a line"
    return f"sentencepiece could not train a model: {message}"


def check_writable(model_prefix: str) -> None:
    """Checks before the work that PREFIX.model can be written, and makes its directory.

    Raises:
      OSError: If it can't.
    """
    try:
        tf.io.gfile.makedirs(os.path.dirname(model_prefix) or ".")
        with tf.io.gfile.GFile(model_prefix + ".model.tmp", "wb") as file:
            file.write(b"")
        tf.io.gfile.remove(model_prefix + ".model.tmp")
    except tf.errors.OpError as error:
        raise OSError(
            f"--model_prefix {model_prefix} can't be written ({error.message}): name another place"
        ) from None


def write_model(model: bytes, model_prefix: str) -> None:
    """Writes PREFIX.vocab and PREFIX.model, each of them whole or not at all."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    vocabulary = "".join(
        f"{processor.id_to_piece(i)}\t{processor.get_score(i):g}\n" for i in range(len(processor))
    )
    for suffix, content in ((".vocab", vocabulary.encode()), (".model", model)):
        files.replace(model_prefix + suffix, content)


def main(argv: Sequence[str], flag_values: flags.FlagValues = flags.FLAGS) -> None:
    """Trains and writes the model that the flags describe."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {' '.join(argv[1:])}")
    with errors.in_one_line():
        texts = files.list_files(flag_values.input_file)
        # Bytes that are not UTF-8 are left out: a few are no reason to have no vocabulary.
        settings = read_text_settings(flag_values, mode="rb")
        if math.isnan(flag_values.character_coverage):  # It is within all bounds.
            raise ValueError("--character_coverage must be within [0, 1], not nan")
        check_writable(flag_values.model_prefix)
        model = train(
            texts,
            settings,
            vocab_size=flag_values.vocab_size,
            character_coverage=flag_values.character_coverage,
            do_lower_case=flag_values.do_lower_case,
            input_sentence_size=flag_values.input_sentence_size,
        )
        write_model(model, flag_values.model_prefix)
    print(
        f"{flag_values.model_prefix}.model: {flag_values.vocab_size} pieces from {len(texts)} "
        f"file{'s' if len(texts) > 1 else ''}"
    )


def run() -> None:
    """Runs this script on the process's command line."""
    scripts.run_script(main, define_flags, __doc__)
