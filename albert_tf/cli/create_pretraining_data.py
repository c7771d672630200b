r"""Makes pre-training records from text: one sentence per line, a blank line between documents.

The text is read and tokenised once, as a stream. Each process holds a few blocks of it in memory:
random documents come from the same block. The records of each output file are shuffled. They
depend on the text and the flags, not on the number of processes. If a run is interrupted, the same
command continues after the last complete shard.

    albert-create-pretraining-data --input_file=text.txt --output_file=records.tfrecord \
        --num_output_shards=8 --spm_model_file=30k-clean.model --max_seq_length=512 \
        --max_predictions_per_seq=77

Source: create_pretraining_data.py, with its flags.
Differs: each output file holds a region of the text, shuffled by itself; the release shuffles all
instances, and deals them out to the files.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

from absl import logging

from albert_tf.console import errors, log, tensorflow_logs
from albert_tf.generator.create import create_pretraining_data
from albert_tf.generator.settings import GeneratorSettings


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Makes SIGTERM end the run as Ctrl-C does, cleanup included."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def main(settings: GeneratorSettings) -> None:
    """Writes the records that the settings describe, and logs what they are."""
    tensorflow_logs.import_tensorflow()
    log.begin()
    with errors.in_one_line(flags=settings.names()), _ended_by_sigterm():
        report = create_pretraining_data(settings)
    for line in report.lines():
        logging.info("%s", line)
