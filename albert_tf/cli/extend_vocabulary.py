"""Extends a vocabulary and its model: flags -> checks, pieces, rows. Users read commands.py."""

from __future__ import annotations

import os
import tempfile

from absl import flags

from albert_tf.console import errors
from albert_tf.conversion import convert
from albert_tf.conversion.stored import add_pieces, read
from albert_tf.generator import sentencepiece
from albert_tf.generator.text_flags import read_text_settings
from albert_tf.storage import files, hub
from albert_tf.text import vocabulary
from albert_tf.text.sentence_piece import ExtensibleModel
from albert_tf.text.vocabulary import Vocabulary


def main(values: flags.FlagValues) -> None:
    """Writes the model that the flags ask for."""
    with errors.in_one_line(flags=values):
        print(_extend(values))


def _extend(values: flags.FlagValues) -> str:
    texts = files.list_files(values.input_file)
    settings = read_text_settings(values)
    files.check_free(values.output_dir)
    path = hub.local(values.init_checkpoint)
    old = vocabulary.need(path, values.spm_model_file, do_lower_case=values.do_lower_case)
    if old.is_word_piece:
        raise ValueError(
            f"{old.path} is a WordPiece vocabulary: pieces can only be added to a SentencePiece "
            "model; give one with --spm_model_file"
        )
    lower = old.tokenizer.do_lower_case
    model = ExtensibleModel(files.read_bytes(old.path), old.path)
    source = read(path, values.albert_config_file, old.path, do_lower_case=lower)
    domain = sentencepiece.train(
        texts,
        settings,
        vocab_size=len(model) + values.num_pieces,
        character_coverage=values.character_coverage,
        do_lower_case=lower,
        input_sentence_size=values.input_sentence_size,
        hard_vocab_limit=False,
    )
    sentences = sentencepiece.read_sentences(texts, settings, lower)
    pieces = model.choose(domain, sentences, values.num_pieces)
    if len(pieces) < values.num_pieces:
        raise ValueError(
            f"--num_pieces={values.num_pieces} is too many: {values.input_file} has {len(pieces)} "
            f"useful pieces that {old.path} lacks; lower it to that, or give more text"
        )
    with (
        tempfile.TemporaryDirectory() as folder,
        files.whole_directory(values.output_dir) as directory,
    ):
        file = os.path.join(folder, os.path.basename(old.path))
        files.replace(file, model.add(pieces))
        new = Vocabulary.read(file, is_word_piece=False, do_lower_case=lower)
        extended = add_pieces(source, new, [model.replaced(piece) for piece in pieces])
        new.check(extended.config)
        convert.write_checkpoint(directory, extended)
    return (
        f"{values.output_dir}: {new.tokenizer.vocab_size} pieces, {len(pieces)} of them new, from "
        f"{len(texts)} file{'s' if len(texts) > 1 else ''}"
    )
