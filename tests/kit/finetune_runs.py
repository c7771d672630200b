"""Runs of run_finetune.py on a tiny model and the release's tiny files."""

import json
import pathlib
import sys
from typing import Any

from albert_tf.cli import commands, finetune
from albert_tf.cli.finetune_settings import FinetuningSettings
from albert_tf.tasks.squad_text import read_squad
from tests.kit import tiny

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
# For the small SentencePiece model, and texts of some length.
CONFIG = {
    "vocab_size": 6000,
    "embedding_size": 5,
    "hidden_size": 6,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "intermediate_size": 11,
    "max_position_embeddings": 67,
    "hidden_dropout_prob": 0.1,
}
SQUAD = {
    "max_seq_length": 61,
    "doc_stride": 20,
    "max_query_length": 12,
    "max_answer_length": 4,
    "n_best_size": 5,
    "start_n_top": 3,
    "end_n_top": 2,
}


def write_config(folder: pathlib.Path, **changes: Any) -> pathlib.Path:
    path, text = folder / "tiny.json", tiny.config(**{**CONFIG, **changes}).to_json()
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
    return path


def command(task_name: str, folder: pathlib.Path, **changes: Any) -> list[str]:
    """Returns the flags of a run from scratch; features are cached in `folder`, if made."""
    values = {
        "task_name": task_name,
        "spm_model_file": GOLDEN / "spm/en_small.model",
        "output_dir": folder / "out",
        "cached_dir": folder / "features",
        "from_scratch": True,
        "train_step": 4,
        "warmup_step": 1,
        "learning_rate": 0.01,
        "save_checkpoints_steps": 2,
        "train_batch_size": 3,
        "eval_batch_size": 4,
        "predict_batch_size": 4,
        "static_lengths": 1,
        **_files(task_name),
        **changes,
    }
    if "albert_config_file" not in values:
        values["albert_config_file"] = write_config(folder)
    return [f"--{name}={value}" for name, value in values.items() if value is not None]


def _files(task_name: str) -> dict[str, Any]:
    features = GOLDEN / "features"
    if task_name.startswith("squad"):
        train, dev = (features / f"{task_name}_{name}.json" for name in ("train", "dev"))
        return {**SQUAD, "train_file": train, "predict_file": dev}
    if task_name == "race":
        return {"data_dir": features / "race_data", "max_seq_length": 37, "max_qa_length": 13}
    return {"data_dir": features / "glue_data", "max_seq_length": 23}


def parse(arguments: list[str]) -> FinetuningSettings:
    return tiny.parse(FinetuningSettings, *arguments)


def main(arguments: list[str]) -> None:
    finetune.main(parse(arguments))


def main_of_a_process(arguments: list[str]) -> None:
    """Runs the script as `python run_finetune.py` does, for pretraining_runs.start."""
    sys.argv = ["run_finetune.py", *arguments]
    commands.finetune()


def check_answers(out: pathlib.Path, version: str) -> None:
    """Checks that all questions of the tiny file have an answer, and the best of several."""
    examples = read_squad(GOLDEN / f"features/squad_{version}_dev.json")
    texts = json.loads((out / "predictions.json").read_text())
    nbest = json.loads((out / "nbest_predictions.json").read_text())
    assert list(texts) == list(nbest) == [example.qas_id for example in examples]
    assert all(0 < len(entries) <= 5 for entries in nbest.values())
    # Every word has at least one piece, so the limit on pieces holds for words, too.
    longest = max(len(entry["text"].split()) for entries in nbest.values() for entry in entries)
    assert 1 < longest <= SQUAD["max_answer_length"]
    assert (out / "null_odds.json").exists() == (version == "v2")
