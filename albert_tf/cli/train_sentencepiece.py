"""Trains a SentencePiece vocabulary on your own text, with the options of ALBERT's release.

    albert-train-sentencepiece --input_file='text/*.txt' --model_prefix=vocab/30k-clean

writes vocab/30k-clean.model, which --spm_model_file of every other command takes, and
vocab/30k-clean.vocab, a readable list of its pieces and scores. --keep_accents and --do_lower_case
are given here once: tokenizer_config.json beside the model keeps them. Pieces 0 to 4 are <pad>,
<unk>, [CLS], [SEP] and [MASK]. The same text gives the same files. Sentences of more than
4,192 bytes are left out, as with the release; there is no flag for that, whatever sentencepiece's
warning says.
"""

from __future__ import annotations

import os

from absl import logging

from albert_tf.console import errors, log, tensorflow_logs
from albert_tf.generator import documents, sentencepiece
from albert_tf.generator.settings import SentencePieceSettings
from albert_tf.storage import files
from albert_tf.text.tokenization import describe_fit
from albert_tf.text.vocabulary import Vocabulary, find_form, write_form


def main(settings: SentencePieceSettings) -> None:
    """Trains and writes the model that the settings describe."""
    log.begin()
    tensorflow_logs.import_tensorflow()
    with errors.in_one_line(flags=settings.names()):
        texts = files.list_files(settings.input_file)
        form = settings.do_lower_case, settings.keep_accents
        path = f"{settings.model_prefix}.model"
        sentencepiece.check_writable(settings.model_prefix)
        # One tokenizer_config.json holds for all vocabularies in a directory.
        if find_form((path,), False, lower=form[0], keep=form[1]) != form:
            raise ValueError(
                f"`model_prefix`: tokenizer_config.json beside {path} differs in do_lower_case or "
                "keep_accents, and holds for each vocabulary there: give another directory"
            )
        model = sentencepiece.train(texts, settings, settings.vocab_size, *form)
        sentencepiece.write_model(model, settings.model_prefix)
        made = Vocabulary.read(path, False, *form)
        write_form(made, os.path.dirname(path))
        # A sample of the text shows how well the vocabulary fits it.
        fit = describe_fit(made.tokenizer, documents.sample_sentences(texts, settings))
    said, several = errors.with_dashes(fit, settings.names()), "s" if len(texts) > 1 else ""
    of = f"{settings.vocab_size} pieces from {len(texts)} file{several}"
    logging.info("%s: %s; %s", path, of, said)
