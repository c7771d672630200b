"""Exported models: damaged ones, and concurrent requests, which must get the usual answers."""

from __future__ import annotations

import contextlib
import io
import pathlib
import threading
from functools import partial

from albert_tf.answers.classify import Classify
from albert_tf.cli.predict import main as predict_main
from albert_tf.serving import predict, saved_model
from albert_tf.text.vocabulary import Vocabulary
from tests.kit import goldens, served_tasks
from tests.kit.tiny import run_main
from tools.campaign import file_types, mutators, outcomes
from tools.campaign.file_types import Evidence, FileType
from tools.campaign.outcomes import Outcome, Tally
from tools.campaign.processes import CONTEXT, Program, Running, judge

_SPM = goldens.FOLDER.parent / "spm" / "en_small.model"
_TEXT = "A first text, 1990.\nThe second: ünï code.\n\nA third one.\n"


def make(folder: pathlib.Path) -> None:
    """Exports a tiny classifier of texts, with random weights, to <folder>/model."""
    vocabulary = Vocabulary.read(str(_SPM), is_word_piece=False)
    kind = Classify(labels=("no", "yes"), max_seq_length=64)
    saved_model.save(served_tasks.make(kind, vocabulary), str(folder / "model"))
    (folder / "input.txt").write_text(_TEXT)


def _read(folder: pathlib.Path) -> str:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        paths = [f"--model={folder / 'model'}", f"--input_file={folder / 'input.txt'}"]
        run_main(predict_main, [*paths, "--json"])
    return output.getvalue()


def _judge(evidence: Evidence) -> str | None:
    if "NaN" in evidence.result or "Infinity" in evidence.result:
        return "it prints NaN"
    checked = (".index", ".data-00000-of-00001")
    return file_types.same(evidence) if evidence.suffix.endswith(checked) else None


_EXPORTED = "*.index *.data-* saved_model.pb assets/*"
FILE_TYPES = (
    FileType("exported model", make, mutators.BINARY, _read, _judge, _EXPORTED, slow=True),
    FileType("predict's input", make, mutators.TEXT, _read, _judge, "input.txt", slow=True),
)

# --- concurrent requests ----------------------------------------------------------------------

_PROCESSES, _THREADS = 4, 8
_LINES = [f"A text of {number} words, or more: {'word ' * number}" for number in range(40)]


def _make_requests(folder: pathlib.Path) -> None:
    process = CONTEXT.Process(target=make, args=(folder,))
    process.start()
    process.join()
    (folder / "input.txt").write_text("\n".join(_LINES) + "\n")


def _arguments(folder: pathlib.Path, out: pathlib.Path) -> list[str]:
    del out
    return [f"--model={folder / 'model'}", f"--input_file={folder / 'input.txt'}", "--json"]


def _predict_in_threads(arguments: list[str]) -> None:
    """Prints whether all threads get the answers that a single thread gets."""
    directory = arguments[0].removeprefix("--model=")
    predictor = predict.load_exported(directory)
    alone = predictor(_LINES)
    answers: list[object] = [None] * _THREADS

    def ask(index: int) -> None:
        for _ in range(5):
            answers[index] = predictor(_LINES)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("all equal" if answers == [alone] * _THREADS else "different answers")


_PREDICT = Program("predict", partial(run_main, predict_main), _make_requests, _arguments, dict)
_THREADED = Program("predict in threads", _predict_in_threads, _make_requests, _arguments, dict)


def predict_concurrently(tally: Tally, folder: pathlib.Path) -> None:
    """Asks from several processes, then from several threads of one process."""
    folder.mkdir(parents=True)
    _make_requests(folder)
    flags = _arguments(folder, folder)
    alone = Running(_PREDICT, flags, folder / "alone.log")
    tally.add("predictions, alone", judge(alone, alone.end()).of_intact())
    together = [Running(_PREDICT, flags, folder / f"{i}.log") for i in range(_PROCESSES)]
    for running in together:
        outcome = judge(running, running.end()).of_intact()
        if outcome.what == outcomes.FINISHED and _answers(running) != _answers(alone):
            outcome = Outcome(outcomes.WRONG, "answers differ from those of a single process")
        tally.add("predictions, processes", outcome)
    threaded = Running(_THREADED, flags, folder / "threads.log")
    outcome = judge(threaded, threaded.end()).of_intact()
    if outcome.what == outcomes.FINISHED and "all equal" not in threaded.log:
        outcome = Outcome(outcomes.WRONG, "answers differ from those of a single process")
    tally.add("predictions, threads", outcome)


def _answers(running: Running) -> list[str]:
    return [line for line in running.log.splitlines() if line.startswith("{")]
