r"""Adds the pieces of a domain's text to a SentencePiece model, and to the model that uses it.

    albert-extend-vocabulary --init_checkpoint=albert_base --input_file='text/*.txt' \
        --num_pieces=2000 --output_dir=albert_base_domain

Pre-training, fine-tuning and all else take the output directory as their weights. Old pieces
keep their ids, and texts without new pieces their ids and outputs. In a clone `python
data/extend_vocabulary.py` is the same.
"""

from __future__ import annotations

import dataclasses
import tempfile

from absl import logging

from albert_tf.console import errors, log, tensorflow_logs
from albert_tf.console.settings import POSITIVE, REQUIRED, setting
from albert_tf.conversion.settings import StoredSettings
from albert_tf.generator.settings import PieceTrainingSettings
from albert_tf.storage import files, hub

_MODEL, _VOCABULARY = "Model and output", "Vocabulary"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExtensionSettings(PieceTrainingSettings, StoredSettings):
    """The settings of extend_vocabulary.py."""

    headings = ("Text", _MODEL, _VOCABULARY)

    init_checkpoint: str = setting(
        REQUIRED, "Model to extend: stored weights of any layout, or hf://OWNER/NAME.", group=_MODEL
    )
    output_dir: str = setting(
        REQUIRED,
        "Directory to write vocabulary, config and checkpoint to; it must be new or empty.",
        group=_MODEL,
    )
    num_pieces: int = setting(
        1000,
        "Number of pieces to add: those that shorten the text most. 1000 make ALBERT-base 1 % "
        "larger.",
        group=_VOCABULARY,
        interval=POSITIVE,
    )


def main(settings: ExtensionSettings) -> None:
    """Writes the model that the settings ask for."""
    log.begin()
    tensorflow_logs.import_tensorflow("tensorflow")
    with errors.in_one_line(flags=settings.names()):
        logging.info("%s", _extend(settings))


def _extend(settings: ExtensionSettings) -> str:
    from albert_tf.conversion import convert
    from albert_tf.conversion.stored_model import add_pieces, read
    from albert_tf.generator import sentencepiece
    from albert_tf.text import vocabulary
    from albert_tf.text.sentence_piece import ExtensibleModel
    from albert_tf.text.vocabulary import Vocabulary

    texts = files.list_files(settings.input_file)
    files.check_free(settings.output_dir)
    # Read the model as it is stored, heads included, and its vocabulary.
    stored = settings.stored(hub.download(settings.init_checkpoint))
    old = stored.vocabulary()
    if old.is_word_piece:
        raise ValueError(
            f"{old.path} is a WordPiece vocabulary: pieces can only be added to a SentencePiece "
            "model; give one with `spm_model_file`"
        )
    model = ExtensibleModel(old.tokenizer.content, old.path)
    source = read(stored)
    # Train a vocabulary of the domain, and keep those of its pieces that shorten the text most.
    vocab_size = len(model) + settings.num_pieces
    domain = sentencepiece.train(texts, settings, vocab_size, *old.form, hard_vocab_limit=False)
    sentences = sentencepiece.read_sentences(texts, settings, *old.form)
    pieces = model.choose(domain, sentences, settings.num_pieces)
    # Writing fewer than asked for would surprise whoever counts on the size.
    if len(pieces) < settings.num_pieces:
        raise ValueError(
            f"`num_pieces={settings.num_pieces}` is too many: {settings.input_file} has "
            f"{len(pieces)} useful pieces that {old.path} lacks; lower it to that, or give more "
            "text"
        )
    # Old pieces keep their ids; a new one's row is the mean of those of the pieces it replaces.
    with (
        tempfile.TemporaryDirectory() as folder,
        files.whole_directory(settings.output_dir) as directory,
    ):
        file = vocabulary.copy(old, folder)
        files.replace(file, model.add(pieces))
        new = Vocabulary.read(file, False, *old.form)
        extended = add_pieces(source, new, [model.replaced(piece) for piece in pieces])
        # Vocabulary and embedding table must have grown by the same number.
        new.check(extended.config)
        convert.write_checkpoint(directory, extended)
    return (
        f"{settings.output_dir}: {new.tokenizer.vocab_size} pieces, {len(pieces)} of them new, "
        f"from {len(texts)} file{'s' if len(texts) > 1 else ''}"
    )
