"""The flags of run_finetune.py: those of the release's four scripts, and a few more.

Those are run_classifier.py, run_race.py, run_squad_v1.py and run_squad_v2.py. Names and defaults
are theirs; where a task's script has another default than run_classifier.py, its help says so.
"""

from __future__ import annotations

import functools
import math
import os
import types

from absl import flags

# Flags that say the same; the first one counts.
_SAME = {"num_train_epochs": "train_step", "warmup_proportion": "warmup_step"}
# What a task's script in the release has where run_classifier.py has another default, or no flag.
RACE_DEFAULTS = {
    "learning_rate": 1e-5,
    "train_step": 12000,
    "warmup_step": 1000,
    "save_checkpoints_steps": 100,
    "do_train": True,
    "do_eval": True,
}
SQUAD_DEFAULTS = {"max_seq_length": 384, "num_train_epochs": 3.0, "warmup_proportion": 0.1}
# There, padding has a share in the softmax over positions: with less of it the loss is another.
SQUAD_V1_DEFAULTS = {**SQUAD_DEFAULTS, "dropout_prob": 0.0, "static_lengths": 1}
DEFAULTS = {"race": RACE_DEFAULTS, "squad_v1": SQUAD_V1_DEFAULTS, "squad_v2": SQUAD_DEFAULTS}

_LEAST = {
    "train_batch_size": 1,
    "eval_batch_size": 1,
    "predict_batch_size": 1,
    "train_step": 1,
    "warmup_step": 0,
    "save_checkpoints_steps": 1,
    "keep_checkpoint_max": 0,
    "iterations_per_loop": 1,
    "max_seq_length": 4,
    "static_lengths": 1,
    "max_qa_length": 1,
    "max_query_length": 1,
    "n_best_size": 1,
    "max_answer_length": 1,
    "start_n_top": 1,
    "end_n_top": 1,
    "random_seed": 0,
    "gradient_accumulation_steps": 1,
}


def define_flags(values: flags.FlagValues) -> None:
    """Declares the flags."""
    kinds = ("alias", "bool", "enum", "float", "integer", "list", "string")
    define = types.SimpleNamespace(
        **{
            kind: functools.partial(getattr(flags, f"DEFINE_{kind}"), flag_values=values)
            for kind in kinds
        }
    )
    define.string(
        "task_name",
        None,
        "cola, mnli, mismnli, mrpc, qnli, qqp, rte, sst-2, sts-b, wnli, ax (predicts only), race, "
        "squad_v1 or squad_v2; classification, regression or choice: of a table of one's own.",
        required=True,
    )
    for define_some in (_define_files, _define_model, _define_steps, _define_text, _define_devices):
        define_some(define)


def _define_files(define: types.SimpleNamespace) -> None:
    define.string("data_dir", None, "Folder of GLUE's folders, or the one that holds RACE.")
    define.string("train_file", None, "SQuAD: JSON file to train on. Table: .csv, .tsv or .jsonl.")
    define.string("eval_file", None, "Likewise, to evaluate on; SQuAD's default: predict_file.")
    define.string("predict_file", None, "Likewise, to predict; a table needs no labels there.")
    define.string("text_column", "text", "Table: column of the text.")
    define.string("text_pair_column", None, "Table: column of the second text, or of the question.")
    define.string("label_column", "label", "Table: column of the label.")
    define.list("choice_columns", [], "Table, choice: columns of the choices.")
    define.string("output_dir", None, "Checkpoints and results; a run goes on there.")
    define.string("cached_dir", None, "Folder of the features made; default: in output_dir.")
    define.string("train_feature_file", None, "How files of features to train on begin.")
    define.string("predict_feature_file", None, "Likewise, of features to predict.")
    define.string("predict_feature_left_file", None, "SQuAD: not needed, and not written.")
    define.string("export_dir", None, "Folder of a SavedModel to make of the best checkpoint.")
    define.float("threshold_to_export", math.nan, "Threshold that is stored with it.")


def _define_model(define: types.SimpleNamespace) -> None:
    define.string("albert_config_file", None, "Default: what lies beside init_checkpoint.")
    define.string("init_checkpoint", None, "Pre-trained weights to start from, in any layout.")
    define.string("albert_hub_module_handle", None, "The same, for a TF-Hub module on disk.")
    define.string("spm_model_file", None, "SentencePiece model: its vocabulary.")
    define.string("vocab_file", None, "WordPiece vocabulary, where there is no spm_model_file.")
    define.bool("do_lower_case", True, "Whether the model is uncased.")
    define.float("hidden_dropout_prob", None, "Replaces the config's.")
    define.float("attention_probs_dropout_prob", None, "Replaces the config's.")
    define.float("dropout_prob", 0.1, "Dropout of the head (0 for squad_v1, which has none).")


def _define_steps(define: types.SimpleNamespace) -> None:
    define.bool("do_train", False, "Whether to train (race: true).")
    define.bool("do_eval", False, "Whether to evaluate each checkpoint, best kept (race: true).")
    define.bool("do_predict", False, "Whether to predict with the best; SQuAD evaluates first.")
    define.integer("train_batch_size", 32, "Examples of an update, over all devices.")
    define.integer("eval_batch_size", 8, "Examples of an evaluation step, over all devices.")
    define.integer("predict_batch_size", 8, "Examples of a prediction step, over all devices.")
    define.enum("optimizer", "adamw", ["adamw", "lamb"], "Optimizer.")
    define.float("learning_rate", 5e-5, "Rate that the decay starts from (race: 1e-5).")
    define.integer("train_step", 1000, "Updates (race: 12000; SQuAD: by num_train_epochs).")
    define.float("num_train_epochs", None, "The same, in turns of the examples (SQuAD: 3).")
    define.integer("warmup_step", 0, "Updates of warm-up (race: 1000).")
    define.float("warmup_proportion", None, "The same, as a share of all (SQuAD: 0.1).")
    define.integer("save_checkpoints_steps", 1000, "Updates between checkpoints (race: 100).")
    define.integer("keep_checkpoint_max", 5, "Checkpoints to keep; 0 keeps all.")
    define.alias("num_keep_checkpoint", "keep_checkpoint_max")
    define.integer("iterations_per_loop", 1000, "Most updates between two looks from the host.")
    # Not in the release:
    define.bool("from_scratch", False, "Start from noise, where there is no init_checkpoint.")
    define.list("ensemble_dirs", None, "Output directories whose predictions are averaged.")
    define.integer("random_seed", 12345, "Of fresh weights, the order of examples and dropout.")
    define.enum("precision", "float32", ["float32", "bfloat16"], "What the model computes in.")
    define.bool("jit_compile", False, "Compile with XLA; a TPU always does.")
    define.integer("gradient_accumulation_steps", 1, "Parts in which a device takes its batch.")
    define.bool("recompute", False, "Save memory: compute blocks again in the backward pass.")


def _define_text(define: types.SimpleNamespace) -> None:
    define.integer("max_seq_length", 512, "Most pieces of a sequence (SQuAD: 384).")
    define.integer("static_lengths", 6, "Lengths to pad to, at most; 1: max_seq_length (squad_v1).")
    define.integer("max_qa_length", 128, "race: most pieces of a question with an option.")
    define.bool("high_only", False, "race: only the level high.")
    define.bool("middle_only", False, "race: only the level middle.")
    define.integer("doc_stride", 128, "SQuAD: pieces from one window to the next.")
    define.integer("max_query_length", 64, "SQuAD: most pieces of a question.")
    define.integer("n_best_size", 20, "SQuAD: answers of nbest_predictions.json.")
    define.integer("max_answer_length", 30, "SQuAD: most pieces of an answer.")
    define.integer("start_n_top", 5, "squad_v2: beam of starts.")
    define.integer("end_n_top", 5, "squad_v2: beam of ends for each start.")


def _define_devices(define: types.SimpleNamespace) -> None:
    define.bool("use_tpu", False, "Whether to run on a TPU.")
    define.string("tpu_name", None, "Name or grpc address of the TPU; none is this TPU VM's.")
    define.string("tpu_zone", None, "Zone of the TPU.")
    define.string("gcp_project", None, "Project of the TPU.")
    define.string("master", None, "grpc address of the TPU, where it has no name.")
    define.integer("num_tpu_cores", 8, "Cores of the TPU.")
    define.bool("use_einsum", True, "Of no effect: there is one way to multiply.")


def set_task_defaults(values: flags.FlagValues) -> None:
    """Gives flags that are not on the command line the task's defaults.

    A task's name may be in capitals, as in the release's command lines.
    """
    values.task_name = values.task_name.lower()
    defaults = dict(DEFAULTS.get(values.task_name, {}))
    if values.task_name in ("squad_v1", "squad_v2"):
        # To predict is to find the best checkpoint first, there.
        defaults["do_eval"] = values.do_predict
    if values.ensemble_dirs:
        # Predictions are there already.
        defaults |= {"do_train": False, "do_eval": False}
    for name, value in defaults.items():
        if not values[name].present and not values[_SAME.get(name, name)].present:
            values[name].value = value


def check_flags(values: flags.FlagValues) -> None:
    """Compares the flags with each other.

    Raises:
      ValueError: They contradict.
    """
    if not (values.do_train or values.do_eval or values.do_predict or values.export_dir):
        raise ValueError("nothing to do: set --do_train, --do_eval, --do_predict or --export_dir")
    if values.ensemble_dirs and values.export_dir:
        raise ValueError("--ensemble_dirs has no model to export: leave --export_dir out")
    if not math.isnan(values.threshold_to_export) and not values.export_dir:
        raise ValueError("--threshold_to_export is stored in --export_dir: set that too")
    if not values.output_dir:
        raise ValueError("--output_dir is empty: name a directory; . is this one")
    if values.ensemble_dirs and values.do_train:
        raise ValueError("--ensemble_dirs averages what was predicted: leave --do_train out")
    if os.path.realpath(values.output_dir) in map(os.path.realpath, values.ensemble_dirs or []):
        raise ValueError(
            "--output_dir is one of --ensemble_dirs, whose predictions would be replaced: name "
            "another directory"
        )
    for name, least in _LEAST.items():
        if values[name].value < least:
            raise ValueError(f"--{name} must be at least {least}, not {values[name].value}")
    if not 0 < values.learning_rate < math.inf:
        raise ValueError(f"--learning_rate must be above 0, not {values.learning_rate}")
    if not 0 <= values.dropout_prob < 1:
        raise ValueError(f"--dropout_prob must be in [0, 1), not {values.dropout_prob}")
    for name, other in _SAME.items():
        if values[name].present and values[other].present:
            raise ValueError(f"--{name} and --{other} say the same: set one of them")
    if values.num_train_epochs is not None and not 0 < values.num_train_epochs < math.inf:
        raise ValueError(f"--num_train_epochs must be above 0, not {values.num_train_epochs}")
    if values.warmup_proportion is not None and not 0 <= values.warmup_proportion <= 1:
        raise ValueError(f"--warmup_proportion must be in [0, 1], not {values.warmup_proportion}")
    if values.high_only and values.middle_only:
        raise ValueError("--high_only and --middle_only leave nothing: set one of them")
    if values.init_checkpoint and values.albert_hub_module_handle:
        raise ValueError("--init_checkpoint and --albert_hub_module_handle: set one of them")
    if values.from_scratch and initial_weights(values):
        raise ValueError("--from_scratch and an --init_checkpoint: set one of them")
    _check_what_is_served(values)


def _check_what_is_served(values: flags.FlagValues) -> None:
    """Checks what would be found out only once the model is trained and served."""
    columns, longest = values.choice_columns, values.max_seq_length
    if len(columns) == 1:
        raise ValueError(f"--choice_columns must name at least two columns, not only {columns[0]}")
    widest = max(values.start_n_top, values.end_n_top)
    if values.task_name == "squad_v2" and widest > longest:
        raise ValueError(
            f"--start_n_top and --end_n_top must be at most {longest} (--max_seq_length), not "
            f"{widest}"
        )
    if not values.export_dir:
        return
    if values.task_name in ("race", "choice") and values.max_qa_length > longest - 3:
        raise ValueError(
            f"--max_qa_length must be at most {longest - 3} for --export_dir, as --max_seq_length "
            f"{longest} has no room for {values.max_qa_length}"
        )
    threshold = values.threshold_to_export
    if values.task_name != "squad_v2" and not (math.isnan(threshold) or 0 <= threshold <= 1):
        raise ValueError(f"--threshold_to_export must be in [0, 1], not {threshold}")


def initial_weights(values: flags.FlagValues) -> str | None:
    """Returns where weights come from that output_dir hasn't."""
    return values.init_checkpoint or values.albert_hub_module_handle
