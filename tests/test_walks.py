"""docs/architecture.md tells the truth about walks: the files it names run, and few others.

Not tested here: code that runs while a module is imported; other processes.
"""

import contextlib
import pathlib
import re
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from albert_tf.cli import create_pretraining_data, export
from albert_tf.generator.settings import GeneratorSettings
from albert_tf.serving import predict
from albert_tf.serving.settings import ExportSettings
from tests.kit import finetune_runs, made_up_models, pretraining_runs, tiny

testclient = pytest.importorskip("starlette.testclient")

from albert_tf.serving.rest_api import create_app  # noqa: E402

ROOT = pathlib.Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "architecture.md").read_text()
WALKS = TEXT[TEXT.index("## Walks") : TEXT.index("## The paper's sections")].split("\n**")[1:]
TITLE = re.compile(r"(From .*)\*\* \((\d+) files\)")
NAMED = re.compile(r"`([\w/]+\.py)")


@contextlib.contextmanager
def files_that_run() -> Iterator[set[str]]:
    """Collects the files of albert_tf whose functions are called, in this and in new threads."""
    library = f"{ROOT / 'albert_tf'}/"
    found: set[str] = set()

    def note(frame, event, argument):
        code = frame.f_code
        if code.co_filename.startswith(library) and code.co_name != "<module>":
            found.add(code.co_filename.removeprefix(library))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def pretrain(folder: pathlib.Path) -> None:
    text = (finetune_runs.GOLDEN / "pretrain_data" / "text.txt").read_text(encoding="utf-8")
    (folder / "text.txt").write_text("\n\n".join(text.split("\n\n")[:9]), encoding="utf-8")
    lengths = {"max_seq_length": 64, "max_predictions_per_seq": 9}
    records = {"input_file": folder / "text.txt", "output_file": folder / "text.tfrecord"}
    records["spm_model_file"] = finetune_runs.GOLDEN / "spm" / "en_small.model"
    records |= {"dupe_factor": 1, "num_processes": 1}
    create_pretraining_data.main(tiny.parse(GeneratorSettings, **records, **lengths))
    run = {"num_train_steps": 1, "num_warmup_steps": 0, "eval_batch_size": 2, "train_batch_size": 2}
    config = finetune_runs.write_config(folder)
    command = pretraining_runs.command(folder, albert_config_file=config, **run, **lengths)
    pretraining_runs.main([*command, "--do_train", "--do_eval"])


def fine_tune(folder: pathlib.Path, task: str, **files: pathlib.Path | None) -> None:
    steps = {"train_step": 1, "warmup_step": 0, "save_checkpoints_steps": 1}
    command = finetune_runs.command(task, folder, **steps, **files)
    finetune_runs.main([*command, "--do_train", "--do_eval", "--do_predict"])


def fine_tune_on_a_table(folder: pathlib.Path) -> None:
    table = folder / "table.csv"
    table.write_text("text,label\na cat,a\na dog,b\nno cat,a\nno text,b\n")
    files = {"train_file": table, "eval_file": table, "predict_file": table, "data_dir": None}
    fine_tune(folder, "classification", **files)


def serve(folder: pathlib.Path) -> None:
    given = {"model": folder / "out", "task": "classify", "export_dir": folder / "exported"}
    export.main(tiny.parse(ExportSettings, **given))
    models = {"table": {"1": predict.load_exported(str(folder / "exported"))}}
    app = create_app(models, made_up_models.settings_of())
    with testclient.TestClient(app, base_url="http://localhost") as client:
        response = client.post("/v1/models/table:predict", json={"instances": ["a cat"]})
    (answer,) = response.json()["predictions"]
    assert answer["label"] in ("a", "b")


WAYS: dict[str, Callable[[pathlib.Path], None]] = {
    "From text to a checkpoint": pretrain,
    "From a row of CoLA to CoLA.tsv": lambda folder: fine_tune(folder, "cola"),
    "From a row of a CSV file to a fine-tuned model": fine_tune_on_a_table,
    "From a fine-tuned model to a served answer": serve,
}


@pytest.fixture(scope="module")
def fine_tuned(tmp_path_factory) -> pathlib.Path:
    """The folder in which the third walk leaves the model that the fourth serves."""
    return tmp_path_factory.mktemp("fine_tuned")


@pytest.mark.slow
@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.split("**")[0])
def test_a_walk_runs_the_files_that_it_names_and_few_others(walk, fine_tuned, tmp_path):
    title, most = TITLE.match(walk).groups()
    if title.endswith("served answer") and not (fine_tuned / "out").exists():
        fine_tune_on_a_table(fine_tuned)
    with files_that_run() as found:
        WAYS[title](fine_tuned if "fine-tuned" in title else tmp_path)
    taken = re.sub(r"\([^()]*\.py[^()]*\)", "", walk)
    assert set(NAMED.findall(taken)) - found == set()
    assert len(found) <= int(most), sorted(found)
