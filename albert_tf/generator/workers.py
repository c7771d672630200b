"""The plan of a run, and parallel processes that make its blocks, with results in order."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import functools
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, TypeVar

from absl import logging

from albert_tf.generator import examples
from albert_tf.generator.documents import Place, TextBlock
from albert_tf.generator.examples import pack_rows
from albert_tf.generator.report import Report
from albert_tf.generator.settings import GeneratorSettings
from albert_tf.records.example_encoding import frame_records
from albert_tf.records.spec import compact_spec, pretraining_spec
from albert_tf.text.tokenization import Tokenizer

Item = TypeVar("Item")
Result = TypeVar("Result")
# Number of examples that are built at a time.
_BATCH_SIZE = 256


def count_cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def map_in_order(
    function: Callable[[Item], Result], items: Iterable[Item], num_processes: int
) -> Generator[Result, None, None]:
    """Yields function(item) for every item, in the order of the items.

    At most twice as many items as processes are in flight. With one process, it is this one;
    otherwise `spawn` starts new ones, which is safe whatever libraries are loaded here. They end
    with this iterator, and when this process ends for any reason. Close the iterator
    (contextlib.closing) if it may be abandoned early. Function, items and results are picklable.
    """
    if num_processes == 1:
        yield from map(function, items)
        return
    # Workers wait until a pipe is closed whose other end only this process holds.
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    # A killed parent closes the pipe as well, so that no worker outlives it.
    pool = concurrent.futures.ProcessPoolExecutor(
        num_processes, context, initializer=_end_with, initargs=(receiver,)
    )
    pending: collections.deque[concurrent.futures.Future[Result]] = collections.deque()
    try:
        # Read an item only when there is room for it, and yield the oldest result first.
        for item in items:
            if len(pending) == 2 * num_processes:
                yield pending.popleft().result()
            pending.append(pool.submit(function, item))
        while pending:
            yield pending.popleft().result()
        pool.shutdown()
    except BrokenProcessPool as error:
        raise ChildProcessError(
            "a worker process was killed, perhaps because memory ran out: try again with a lower "
            "`num_processes`"
        ) from error
    finally:
        # Closing the sender ends the workers.
        sender.close()
        # The thread that sends the blocks could wait for ever for a worker to take one. Later
        # versions of Python close the queue themselves (CPython's gh-94777).
        queue = getattr(pool, "_call_queue", None)
        if sys.version_info < (3, 11, 5) and queue:
            with contextlib.suppress(OSError):  # A broken pool's own thread is closing it, too.
                queue._reader.close()
        pool.shutdown(cancel_futures=True)
        receiver.close()


def _end_with(lifeline: Connection) -> None:
    """Ends this worker at once when the parent closes its end of `lifeline`, or is killed."""
    # Ctrl-C reaches all processes of a terminal; the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def wait() -> None:
        lifeline.poll(None)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


class Plan(NamedTuple):
    """The work of a run, independent of the runner; picklable."""

    # documents.cut_blocks with all arguments but `start` and `first_shard`.
    cut_blocks: Callable[[Place, int], Iterator[TextBlock]]
    tokenizer: Tokenizer
    settings: GeneratorSettings  # How examples are made.
    output_files: Sequence[str]  # Paths of the shards.

    def check(self, report: Report) -> None:
        """Refuses text that does not fit the vocabulary or the separator; see Report."""
        report.check_unknown_share(self.settings.max_unknown_share)
        report.check_words(self.settings.word_separator)

    def warn_of_loss(self, report: Report) -> None:
        """Warns if most of the text is cut off, as when its lines are not sentences."""
        if report.dropped_tokens > report.output_tokens:
            logging.warning(
                "more tokens are cut off (%s) than written (%s): most sentences are longer than "
                "max_seq_length=%d; give one sentence per line, in lines that end with LF or CR "
                "LF, or input_format=paragraphs, which finds the sentences",
                f"{report.dropped_tokens:,}",
                f"{report.output_tokens:,}",
                self.settings.max_seq_length,
            )


def save_tokenizer(tokenizer: Tokenizer, folder: str) -> str:
    """Writes a tokenizer to a local folder, where `make_part` finds it, and returns its path."""
    path = os.path.join(folder, tokenizer.digest)
    with open(path, "wb") as file:
        pickle.dump(tokenizer, file)
    return path


@functools.lru_cache(maxsize=1)
def _load_tokenizer(path: str) -> Tokenizer:
    with open(path, "rb") as file:
        return pickle.load(file)


class Part(NamedTuple):
    """The records of a block."""

    path: str  # A TFRecord file.
    shard: int  # The shard it belongs to.
    end: Place  # Where the text of the block ends.
    report: Report  # Its counts.


def make_part(tokenizer_file: str, settings: GeneratorSettings, block: TextBlock) -> Part:
    """Tokenises a block, draws its instances and writes their records beside the tokenizer."""
    tokenizer = _load_tokenizer(tokenizer_file)
    tokens, report = tokenize_block(block, tokenizer, settings)
    folder = os.path.dirname(tokenizer_file)
    # No two blocks begin with the same document, so that parts can't overwrite each other.
    path = os.path.join(folder, f"{block.first_document}.tfrecord")
    try:
        with open(path, "wb") as file:
            for serialized in _make_records(tokens, tokenizer, settings, report):
                file.writelines(frame_records(serialized))
    except OSError as error:
        raise OSError(f"`output_file`: can't write {path}: {error.strerror}") from error
    report.measure_memory()
    return Part(path, block.shard, block.end, report)


def tokenize_block(
    block: TextBlock, tokenizer: Tokenizer, settings: GeneratorSettings
) -> tuple[examples.TokenBlock, Report]:
    """Tokenises a block and counts its content."""
    # Pieces that count as words only because their letters are not Latin are reported.
    word_starts = tokenizer.word_starts(settings.word_starts)
    false_starts = word_starts & ~tokenizer.word_starts("unicode")
    if settings.word_separator:
        false_starts[:] = False
    tokens = examples.tokenize_documents(
        block.documents, block.first_document, tokenizer, word_starts, settings.word_separator
    )
    report = Report()
    report.count_input(tokens, tokenizer.unk_id, false_starts)
    if block.shard == 0:  # Histograms of all shards would make the run's record large.
        report.count_pieces(tokens)
    return tokens, report


def _make_records(
    block: examples.TokenBlock, tokenizer: Tokenizer, settings: GeneratorSettings, report: Report
) -> Iterator[list[bytes]]:
    """Yields the records of a block, a batch at a time."""
    if not block.documents:
        return
    row_format, masks = settings.row_format(tokenizer), settings.mask_settings(tokenizer)
    length, most = settings.max_seq_length, settings.max_examples_per_row
    spec = pretraining_spec(length, masks.label_slots, most) if masks else compact_spec()
    # Instances of the whole block are drawn and shuffled; then they are built batch by batch.
    drawn = examples.draw_instances(block, settings)
    for begin in range(0, len(drawn.seeds), _BATCH_SIZE):
        batch = examples.Instances(*(field[begin : begin + _BATCH_SIZE] for field in drawn))
        made: Any
        if masks:
            made = examples.build_examples(block, batch, row_format, masks)
        else:
            made = examples.build_compact_examples(block, batch, row_format)
        report.count_output(batch, made, masks)
        # The report counts examples before they are packed, and rows after.
        if most > 1:
            made = pack_rows(made, most, tokenizer.pad_id)
        report.count_rows(len(made["sentence_order_labels"]), length)
        yield spec.serialize(made)
