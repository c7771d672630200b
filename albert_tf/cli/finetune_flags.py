"""The flags of run_finetune.py: those of the release's four scripts, and a few more.

Those are run_classifier.py, run_race.py, run_squad_v1.py and run_squad_v2.py. Names and defaults
are theirs; where a task's script has another default than run_classifier.py, the help says so.
Here are the flags of task, model and features; finetune_run_flags has the others.
"""

from __future__ import annotations

from typing import Any

from absl import flags

from albert_tf.cli import finetune_run_flags, recipes, shared_flags
from albert_tf.scripts import FlagGroup
from albert_tf.tasks.registry import TASKS


def define_flags(values: flags.FlagValues) -> None:
    """Adds the flags of run_finetune.py."""
    _define_task(values)
    _define_model(values)
    _define_text(values)
    finetune_run_flags.define_flags(values)
    _define_squad(values)
    shared_flags.define_devices(values)
    recipes.define_flag(values, "Task and data", "finetuning")
    FlagGroup(values, shared_flags.SPEED).boolean(
        "use_einsum", True, "No effect: accepted for the release's command lines."
    )


def _define_task(values: flags.FlagValues) -> None:
    group = FlagGroup(values, "Task and data")
    group.string(
        "task_name",
        None,
        "GLUE: cola, mnli, mismnli, mrpc, qnli, qqp, rte, sst-2, sts-b, wnli, ax (predicts only). "
        "Others: race, squad_v1, squad_v2. For a table of your own: classification, multilabel, "
        "regression, choice, question_answering; for words with tags: token_classification.",
        required=True,
    )
    group.string(
        "data_dir",
        None,
        "Directory of the data: for GLUE, the one that contains the tasks' folders; for RACE, the "
        "one that contains the folder RACE.",
    )
    group.string(
        "train_file",
        None,
        "File to train on: SQuAD's JSON, or a table in .csv, .tsv, .jsonl (.json, too) or "
        ".parquet; questions in .jsonl or .parquet; for token_classification, CoNLL columns or "
        ".jsonl.",
    )
    group.string(
        "eval_file",
        None,
        "File to evaluate on, in the format of train_file. For SQuAD the default is predict_file, "
        "as in the release.",
    )
    group.string(
        "predict_file",
        None,
        "File with the examples to predict, in the format of train_file. A table needs no labels "
        "here.",
    )
    group.string("text_column", "text", "Column with the text of a table.")
    group.string(
        "text_pair_column",
        None,
        "Column with the second text of a table or, for choice, with its question. By default "
        "there is none.",
    )
    group.string(
        "label_column",
        "label",
        "Column with the labels of a table; for multilabel, the labels of a text are separated by "
        "|.",
    )
    group.list(
        "choice_columns",
        [],
        "Columns of the choices, separated by commas; only for task_name=choice.",
    )
    group.boolean("high_only", False, "Read only RACE's level high. By default both levels.")
    group.boolean("middle_only", False, "Read only RACE's level middle. By default both levels.")


def _define_model(values: flags.FlagValues) -> None:
    group = FlagGroup(values, shared_flags.MODEL)
    shared_flags.define_model(values, required=False)
    group.string(
        "albert_hub_module_handle",
        None,
        "Directory of an unpacked TF-Hub module to start from; otherwise like init_checkpoint.",
    )
    group.boolean(
        "from_scratch",
        False,
        "Train from random initialisation. Without it, missing weights are an error.",
    )
    group.string(
        "spm_model_file",
        None,
        "The model's SentencePiece vocabulary. By default the one beside init_checkpoint.",
    )
    group.string(
        "vocab_file",
        None,
        "The model's WordPiece vocabulary; only used if spm_model_file is not set.",
    )
    group.boolean("do_lower_case", True, "Lower-case the text: true for uncased models.")
    for name, what in (
        ("hidden_dropout_prob", "embeddings and hidden states"),
        ("attention_probs_dropout_prob", "the attention probabilities"),
    ):
        group.number(name, None, f"Dropout rate of {what}. By default the config's.", "[0, 1)")
    group.number(
        "dropout_prob",
        0.1,
        "Dropout rate of the task's head. 0.1 is the release's, but 0 for squad_v1.",
        "[0, 1)",
    )


def _define_text(values: flags.FlagValues) -> None:
    group = FlagGroup(values, "Features")
    group.integer(
        "max_seq_length",
        512,
        "Maximum length of a sequence in tokens, with [CLS] and [SEP]; longer text is truncated. "
        "512 is the release's; 384 for SQuAD.",
        lower_bound=4,
    )
    group.enum(
        "windows",
        None,
        ["mean", "max"],
        "Read texts longer than max_seq_length in windows, doc_stride apart, for "
        "classification, multilabel and regression: the probabilities of a text are the mean or "
        "the maximum over its windows. By default such a text is truncated.",
    )
    group.integer(
        "static_lengths",
        6,
        "Number of lengths (buckets) that batches are padded to, in evaluation at most 6; each is "
        "compiled once (on a CPU the short ones of training together), and more of them mean less "
        "padding. 1 pads all batches to max_seq_length; it is the default for squad_v1, whose loss "
        "depends on padding.",
        lower_bound=1,
    )
    group.integer(
        "max_qa_length",
        128,
        "Maximum length of a question with one of its options in tokens, for race and choice. 128 "
        "is the release's.",
        lower_bound=1,
    )
    group.string(
        "cached_dir",
        None,
        "Directory in which features are stored for later runs. By default features/ in "
        "output_dir.",
    )
    group.string(
        "train_feature_file",
        None,
        "Path prefix of the stored features to train on. By default in cached_dir.",
    )
    group.string(
        "predict_feature_file",
        None,
        "Path prefix of the stored features to evaluate and predict. By default in cached_dir.",
    )
    group.string(
        "predict_feature_left_file",
        None,
        "No effect: accepted for the release's command lines.",
    )


def _define_squad(values: flags.FlagValues) -> None:
    group = FlagGroup(values, "SQuAD")
    group.boolean(
        "allow_no_answer",
        False,
        "Allow questions without an answer: trains squad_v2's model instead of squad_v1's. Only "
        "for task_name=question_answering.",
    )
    group.enum(
        "span_head",
        "conditional",
        ["conditional", "linear"],
        "Head of squad_v2's model. conditional is the release's; linear is BERT's, one dense layer "
        "for starts and ends, where no answer is the span of [CLS].",
    )
    for name, default, what in (
        (
            "doc_stride",
            128,
            "Distance in tokens between the starts of successive windows on a "
            "long paragraph or text. Those on texts overlap only if it is less than "
            "max_seq_length - 2.",
        ),
        ("max_query_length", 64, "Maximum length of a question in tokens; longer is truncated."),
        ("max_answer_length", 30, "Maximum length of an answer in tokens."),
        ("n_best_size", 20, "Number of answers per question in nbest_predictions.json."),
        ("start_n_top", 5, "Beam size of squad_v2: number of answer starts considered."),
        ("end_n_top", 5, "Beam size of squad_v2: number of answer ends considered per start."),
    ):
        group.integer(name, default, f"{what} {default} is the release's.", lower_bound=1)


def set_task_defaults(values: flags.FlagValues) -> None:
    """Sets flags that are not on the command line to the task's defaults.

    A task's name may be in capitals, as in the release's command lines.
    """
    name = values.task_name.lower()
    values.task_name = name
    defaults: dict[str, Any] = {}
    if name in TASKS:  # What else it may be is refused later.
        row = TASKS[name]
        row = row.variant(values) if row.variant else row  # type: ignore[arg-type]
        defaults = row.defaults_for(values)
    if values.ensemble_dirs:
        # The predictions already exist.
        defaults |= {"do_train": False, "do_eval": False}
    for flag, value in defaults.items():
        if not values[flag].present and not values[finetune_run_flags.SAME.get(flag, flag)].present:
            values[flag].value = value


def squad_model(values: flags.FlagValues) -> str | None:
    """Returns "squad_v1" or "squad_v2", whose model the task trains; None if neither."""
    if values.task_name == "question_answering":
        return "squad_v2" if values.allow_no_answer else "squad_v1"
    return values.task_name if values.task_name in ("squad_v1", "squad_v2") else None


def initial_weights(values: flags.FlagValues) -> str | None:
    """Returns where weights come from if not from output_dir."""
    return values.init_checkpoint or values.albert_hub_module_handle
