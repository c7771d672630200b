"""The flags of run_finetune.py: those of the release's four scripts, and a few more.

Those are run_classifier.py, run_race.py, run_squad_v1.py and run_squad_v2.py. Names and defaults
are theirs; where a task's script has another default than run_classifier.py, its help says so.
"""

from __future__ import annotations

import math

from absl import flags

FLAGS = flags.FLAGS

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
SQUAD_V1_DEFAULTS = {**SQUAD_DEFAULTS, "dropout_prob": 0.0}
DEFAULTS = {"race": RACE_DEFAULTS, "squad_v1": SQUAD_V1_DEFAULTS, "squad_v2": SQUAD_DEFAULTS}

flags.DEFINE_string(
    "task_name",
    None,
    "cola, mnli, mismnli, mrpc, qnli, qqp, rte, sst-2, sts-b, wnli, ax (predicts only), race, "
    "squad_v1 or squad_v2.",
    required=True,
)
# Files.
flags.DEFINE_string("data_dir", None, "Folder of GLUE's folders, or the one that holds RACE.")
flags.DEFINE_string("train_file", None, "SQuAD: JSON file to train on.")
flags.DEFINE_string("eval_file", None, "SQuAD: JSON file to evaluate on; default: predict_file.")
flags.DEFINE_string("predict_file", None, "SQuAD: JSON file to predict.")
flags.DEFINE_string("output_dir", None, "Checkpoints and results; a run goes on there.")
flags.DEFINE_string("cached_dir", None, "Folder of the features made; default: in output_dir.")
flags.DEFINE_string("train_feature_file", None, "SQuAD: how files of features to train on begin.")
flags.DEFINE_string("predict_feature_file", None, "SQuAD: likewise, of features to predict.")
flags.DEFINE_string("predict_feature_left_file", None, "SQuAD: not needed, and not written.")
# The model.
flags.DEFINE_string("albert_config_file", None, "Default: what lies beside init_checkpoint.")
flags.DEFINE_string("init_checkpoint", None, "Pre-trained weights to start from, in any layout.")
flags.DEFINE_string("albert_hub_module_handle", None, "The same, for a TF-Hub module on disk.")
flags.DEFINE_string("spm_model_file", None, "SentencePiece model: its vocabulary.")
flags.DEFINE_string("vocab_file", None, "WordPiece vocabulary, where there is no spm_model_file.")
flags.DEFINE_bool("do_lower_case", True, "Whether the model is uncased.")
flags.DEFINE_float("dropout_prob", 0.1, "Dropout of the head (0 for squad_v1, which has none).")
# What to do.
flags.DEFINE_bool("do_train", False, "Whether to train (race: true).")
flags.DEFINE_bool("do_eval", False, "Whether to evaluate each checkpoint, best kept (race: true).")
flags.DEFINE_bool("do_predict", False, "Whether to predict with the best; SQuAD evaluates first.")
flags.DEFINE_integer("train_batch_size", 32, "Examples of an update, over all devices.")
flags.DEFINE_integer("eval_batch_size", 8, "Examples of an evaluation step, over all devices.")
flags.DEFINE_integer("predict_batch_size", 8, "Examples of a prediction step, over all devices.")
flags.DEFINE_enum("optimizer", "adamw", ["adamw", "lamb"], "Optimizer.")
flags.DEFINE_float("learning_rate", 5e-5, "Rate that the decay starts from (race: 1e-5).")
flags.DEFINE_integer("train_step", 1000, "Updates (race: 12000; SQuAD: by num_train_epochs).")
flags.DEFINE_float("num_train_epochs", None, "The same, in turns of the examples (SQuAD: 3).")
flags.DEFINE_integer("warmup_step", 0, "Updates of warm-up (race: 1000).")
flags.DEFINE_float("warmup_proportion", None, "The same, as a share of all (SQuAD: 0.1).")
flags.DEFINE_integer("save_checkpoints_steps", 1000, "Updates between checkpoints (race: 100).")
flags.DEFINE_integer("keep_checkpoint_max", 5, "Checkpoints to keep; 0 keeps all.")
flags.DEFINE_alias("num_keep_checkpoint", "keep_checkpoint_max")
flags.DEFINE_integer("iterations_per_loop", 1000, "Updates between two looks from the host.")
# Examples -> features -> answers.
flags.DEFINE_integer("max_seq_length", 512, "Most pieces of a sequence (SQuAD: 384).")
flags.DEFINE_integer("max_qa_length", 128, "race: most pieces of a question with an option.")
flags.DEFINE_bool("high_only", False, "race: only the level high.")
flags.DEFINE_bool("middle_only", False, "race: only the level middle.")
flags.DEFINE_integer("doc_stride", 128, "SQuAD: pieces from one window to the next.")
flags.DEFINE_integer("max_query_length", 64, "SQuAD: most pieces of a question.")
flags.DEFINE_integer("n_best_size", 20, "SQuAD: answers of nbest_predictions.json.")
flags.DEFINE_integer("max_answer_length", 30, "SQuAD: most pieces of an answer.")
flags.DEFINE_integer("start_n_top", 5, "squad_v2: beam of starts.")
flags.DEFINE_integer("end_n_top", 5, "squad_v2: beam of ends for each start.")
# Devices.
flags.DEFINE_bool("use_tpu", False, "Whether to run on a TPU.")
flags.DEFINE_string("tpu_name", None, "Name or grpc address of the TPU; none is this TPU VM's.")
flags.DEFINE_string("tpu_zone", None, "Zone of the TPU.")
flags.DEFINE_string("gcp_project", None, "Project of the TPU.")
flags.DEFINE_string("master", None, "grpc address of the TPU, where it has no name.")
flags.DEFINE_integer("num_tpu_cores", 8, "Cores of the TPU.")
flags.DEFINE_bool("use_einsum", True, "Of no effect: there is one way to multiply.")
# A SavedModel.
flags.DEFINE_string("export_dir", None, "Folder of a SavedModel to export.")
flags.DEFINE_float("threshold_to_export", math.nan, "Threshold that is stored with it.")
# Not in the release:
flags.DEFINE_bool("from_scratch", False, "Start from noise, where there is no init_checkpoint.")
flags.DEFINE_list("ensemble_dirs", None, "Output directories whose predictions are averaged.")
flags.DEFINE_integer("random_seed", 12345, "Of fresh weights, the order of examples and dropout.")
flags.DEFINE_enum("precision", "float32", ["float32", "bfloat16"], "What the model computes in.")
flags.DEFINE_bool("jit_compile", False, "Compile with XLA; a TPU always does.")
flags.DEFINE_integer("gradient_accumulation_steps", 1, "Parts in which a device takes its batch.")
flags.DEFINE_bool("recompute", False, "Save memory: compute blocks again in the backward pass.")


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
    "max_qa_length": 1,
    "max_query_length": 1,
    "n_best_size": 1,
    "max_answer_length": 1,
    "start_n_top": 1,
    "end_n_top": 1,
    "random_seed": 0,
    "gradient_accumulation_steps": 1,
}


def set_task_defaults() -> None:
    """Gives flags that are not on the command line the task's defaults."""
    for name, value in DEFAULTS.get(FLAGS.task_name, {}).items():
        if not FLAGS[name].present and not FLAGS[_SAME.get(name, name)].present:
            FLAGS[name].value = value


def check_flags() -> None:
    """Compares the flags with each other.

    Raises:
      ValueError: They contradict.
    """
    if not (FLAGS.do_train or FLAGS.do_eval or FLAGS.do_predict):
        raise ValueError("nothing to do: set --do_train, --do_eval or --do_predict")
    for name, least in _LEAST.items():
        if FLAGS[name].value < least:
            raise ValueError(f"--{name} must be at least {least}, not {FLAGS[name].value}")
    if not 0 < FLAGS.learning_rate < math.inf:
        raise ValueError(f"--learning_rate must be above 0, not {FLAGS.learning_rate}")
    for name, other in _SAME.items():
        if FLAGS[name].present and FLAGS[other].present:
            raise ValueError(f"--{name} and --{other} say the same: set one of them")
    if FLAGS.num_train_epochs is not None and not 0 < FLAGS.num_train_epochs < math.inf:
        raise ValueError(f"--num_train_epochs must be above 0, not {FLAGS.num_train_epochs}")
    if FLAGS.warmup_proportion is not None and not 0 <= FLAGS.warmup_proportion <= 1:
        raise ValueError(f"--warmup_proportion must be in [0, 1], not {FLAGS.warmup_proportion}")
    if FLAGS.high_only and FLAGS.middle_only:
        raise ValueError("--high_only and --middle_only leave nothing: set one of them")
    if FLAGS.init_checkpoint and FLAGS.albert_hub_module_handle:
        raise ValueError("--init_checkpoint and --albert_hub_module_handle: set one of them")
    if FLAGS.from_scratch and initial_weights():
        raise ValueError("--from_scratch and an --init_checkpoint: set one of them")
    if not FLAGS.spm_model_file and not FLAGS.vocab_file:
        raise ValueError("no vocabulary: set --spm_model_file, or --vocab_file for a WordPiece one")


def initial_weights() -> str | None:
    """Returns where weights come from that output_dir hasn't."""
    return FLAGS.init_checkpoint or FLAGS.albert_hub_module_handle
