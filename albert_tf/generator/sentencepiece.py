"""Trains SentencePiece models with the recipe of ALBERT's release, and writes them."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence

import sentencepiece

from albert_tf.generator import documents
from albert_tf.generator.settings import PieceTrainingSettings
from albert_tf.storage import files
from albert_tf.text.sentence_piece import preprocess_text, without_digit_commas

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


def read_sentences(
    files: Sequence[str],
    settings: documents.TextSettings,
    do_lower_case: bool,
    keep_accents: bool = False,
) -> Iterator[str]:
    """Yields the files' non-empty normalised sentences, one at a time."""
    for document in documents.read_documents(files, settings):
        for line in document.sentences:
            sentence = preprocess_text(line, do_lower_case, keep_accents)
            if sentence:
                yield sentence


def train(
    files: Sequence[str],
    settings: PieceTrainingSettings,
    vocab_size: int,
    do_lower_case: bool,
    keep_accents: bool = False,
    hard_vocab_limit: bool = True,
) -> bytes:
    """Trains a model with the release's recipe, and returns the content of its file.

    Differs: a piece that ends in a digit and a comma keeps its id but is never used; see
    without_digit_commas.

    With `hard_vocab_limit`, text that supports fewer pieces is an error.
    """
    read = functools.partial(read_sentences, files, settings, do_lower_case, keep_accents)
    # sentencepiece's own error for an empty text says nothing of files.
    if next(read(), None) is None:
        raise ValueError(f"`input_file`: there is no text in {', '.join(files)}")
    # An error of the iterator would get lost in C++, so `failures` keeps it.
    model, failures = io.BytesIO(), list[BaseException]()
    sentencepiece.set_random_generator_seed(RANDOM_SEED)
    try:
        with _ctrl_c_at_once() as begin:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=_noting(read(), failures, begin),
                model_writer=model,
                vocab_size=vocab_size,
                character_coverage=settings.character_coverage,
                input_sentence_size=settings.input_sentence_size,
                hard_vocab_limit=hard_vocab_limit,
                minloglevel=1,
                **RECIPE,
            )
    except RuntimeError as error:
        # An error while the text was read is the cause; sentencepiece only stopped.
        if failures:
            raise failures[0] from None
        raise ValueError(_explain(str(error), vocab_size)) from error
    return without_digit_commas(model.getvalue())


@contextlib.contextmanager
def _ctrl_c_at_once() -> Iterator[Callable[[], object]]:
    """Yields a function; from its call to the end of the body Ctrl-C ends the process at once.

    Python's own handler would wait until sentencepiece has trained, perhaps for an hour. Nothing is
    lost: no file is written in that time.
    """
    # Only the main thread may set handlers, and a user's own handler stays.
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield lambda: None
        return
    try:
        yield lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _noting(
    sentences: Iterator[str], failures: list[BaseException], at_end: Callable[[], object]
) -> Iterator[str | None]:
    """Yields sentences, then calls `at_end`; an error is appended to `failures`, and None yielded.

    sentencepiece would take the error for the end of the text; None makes it raise its own error.
    """
    try:
        yield from sentences
        at_end()
    except GeneratorExit:
        raise
    except BaseException as error:  # Neither Ctrl-C nor a panic in Rust is an Exception.
        failures.append(error)
        yield None


def _explain(message: str, vocab_size: int) -> str:
    if found := re.search(r"Vocabulary size too high .* <= (\d+)", message):
        return (
            f"`vocab_size={vocab_size}` is too large for this text: lower it to at most "
            f"{found[1]}, or give more text"
        )
    if found := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return (
            f"`vocab_size={vocab_size}` is too small: the characters and special pieces alone "
            f"need {found[1]}; raise it, or lower `character_coverage`"
        )
    if "sentences_.empty()" in message:
        return "`input_file`: every line has more than 4,192 bytes: give one sentence per line"
    return f"sentencepiece could not train a model: {message}"


def check_writable(model_prefix: str) -> None:
    """Checks before training that PREFIX.model can be written, and makes its directory."""
    import tensorflow as tf

    files.check_expanded(model_prefix)
    if not os.path.basename(model_prefix):  # It would write hidden files.
        raise OSError(f"`model_prefix` {model_prefix} has no file name: give DIRECTORY/NAME")
    try:
        tf.io.gfile.makedirs(os.path.dirname(model_prefix) or ".")
        files.try_to_write(model_prefix + ".model.tmp")
    except tf.errors.OpError as error:
        raise OSError(
            f"`model_prefix` {model_prefix} can't be written ({files.reason(error)}): give another "
            "path"
        ) from None


def write_model(model: bytes, model_prefix: str) -> None:
    """Writes PREFIX.vocab and PREFIX.model, each atomically."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    vocabulary = "".join(
        f"{processor.id_to_piece(i)}\t{processor.get_score(i):g}\n" for i in range(len(processor))
    )
    for suffix, content in ((".vocab", vocabulary.encode()), (".model", model)):
        files.replace(model_prefix + suffix, content)
