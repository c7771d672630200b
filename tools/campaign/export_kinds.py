"""Exported models and requests to them, read as `python -m albert_tf.predict` does."""

from __future__ import annotations

import contextlib
import io
import pathlib

import albert_tf
from albert_tf import export
from albert_tf.serving import predict
from albert_tf.text.vocabulary import Vocabulary
from tests import goldens
from tests.tiny import randomise, run_main
from tools.campaign import kinds, mutators
from tools.campaign.kinds import Evidence, Kind

_SPM = goldens.FOLDER.parent / "spm" / "en_small.model"
_TEXT = "A first text, 1990.\nThe second: ünï code.\n\nA third one.\n"


def make(folder: pathlib.Path) -> None:
    """Exports a tiny classifier of texts, with random weights, to <folder>/model."""
    vocabulary = Vocabulary.read(str(_SPM), is_word_piece=False)
    size = vocabulary.tokenizer.vocab_size
    config = goldens.config("base", vocab_size=size, num_hidden_layers=1)
    model = randomise(albert_tf.AlbertForSequenceClassification(config, num_labels=2))
    export.save(export.Classifier(model, vocabulary, ("no", "yes")), str(folder / "model"))
    (folder / "input.txt").write_text(_TEXT)


def _read(folder: pathlib.Path) -> str:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        paths = [f"--model={folder / 'model'}", f"--input_file={folder / 'input.txt'}"]
        run_main(predict.main, [*paths, "--json"])
    return output.getvalue()


def _judge(evidence: Evidence) -> str | None:
    if "NaN" in evidence.result or "Infinity" in evidence.result:
        return "it prints NaN"
    checked = (".index", ".data-00000-of-00001")
    return kinds.same(evidence) if evidence.suffix.endswith(checked) else None


KINDS = (
    Kind(
        "exported model",
        make,
        ("*.index", "*.data-*", "saved_model.pb", "assets/*"),
        mutators.BINARY,
        _read,
        _judge,
        slow=True,
    ),
    Kind("predict's input", make, ("input.txt",), mutators.TEXT, _read, _judge, slow=True),
)
