"""The settings of albert-finetune: those of the release's four scripts, and a few more.

The four are run_classifier.py, run_race.py, run_squad_v1.py and run_squad_v2.py. Where a task's
script has another default than run_classifier.py, its row in albert_tf.tasks.registry has that.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import types
from collections.abc import Mapping
from typing import Any, ClassVar

from albert_tf import config
from albert_tf.cli.training_settings import LOSS, MODEL, SPEED, TPU, TRAINING, TrainingSettings
from albert_tf.console.settings import NATURAL, POSITIVE, REQUIRED, setting, with_default
from albert_tf.conversion.settings import StoredSettings
from albert_tf.tasks.registry import TASKS, names_in_help
from albert_tf.tasks.settings import FEATURES, SQUAD, TASK, VECTORS, TaskSettings
from albert_tf.tasks.table import COLUMNS
from albert_tf.training import length_buckets

_EVALUATION, _EXPORT = "Evaluation and prediction", "Export"
_RECIPES = config.shipped_recipes("finetuning")
# Settings that mean the same in different units.
_UNITS = (("num_train_epochs", "train_step"), ("warmup_proportion", "warmup_step"))

_model = functools.partial(setting, group=MODEL)
_inherited = functools.partial(with_default, TrainingSettings)
_beside = functools.partial(with_default, StoredSettings, group=MODEL, per_command=True)
_features = functools.partial(setting, group=FEATURES)
_stored = functools.partial(setting, group=FEATURES, rare=True)
_training = functools.partial(setting, group=TRAINING)
_loss = functools.partial(setting, group=LOSS)
_evaluation = functools.partial(setting, group=_EVALUATION)
_export = functools.partial(setting, group=_EXPORT, per_command=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuningSettings(TrainingSettings, TaskSettings):
    """The settings of run_finetune.py.

    Example:
        >>> settings = FinetuningSettings.of(task_name="RACE", output_dir="out")
        >>> settings.task_name, settings.do_train, settings.learning_rate
        ('race', True, 1e-05)
    """

    headings = (
        *(TASK, COLUMNS, MODEL, FEATURES, TRAINING, LOSS, _EVALUATION, _EXPORT),
        *(VECTORS, SQUAD, SPEED, TPU),
    )
    recipes: ClassVar[Mapping[str, str]] = _RECIPES
    exclusive = (
        *_UNITS,
        ("high_only", "middle_only"),
        ("label_column", "label_columns"),
        ("init_checkpoint", "albert_hub_module_handle"),
        ("from_scratch", "init_checkpoint"),
        ("from_scratch", "albert_hub_module_handle"),
    )
    # Setting -> the same in another unit.
    same: ClassVar[Mapping[str, str]] = {**dict(_UNITS), **{b: a for a, b in _UNITS}}

    task_name: str = with_default(TaskSettings, "task_name", REQUIRED, names_in_help())
    recipe: str | None = _inherited("recipe", None, choices=tuple(_RECIPES), group=TASK)

    albert_config_file: str | None = _inherited(
        "albert_config_file", None, "By default the one beside the weights.", per_command=True
    )
    init_checkpoint: str | None = _inherited(
        "init_checkpoint",
        None,
        "By default there are none, which is an error without from_scratch.",
    )
    albert_hub_module_handle: str | None = _model(
        None,
        "Directory of an unpacked TF-Hub module to start from; otherwise like init_checkpoint.",
        rare=True,
    )
    from_scratch: bool = _model(
        False,
        "Train from random initialisation. Without it, missing weights are an error.",
        per_command=True,
    )
    spm_model_file: str | None = _beside("spm_model_file", None)
    vocab_file: str | None = _beside("vocab_file", None, "Only used without spm_model_file.")
    do_lower_case: bool = _beside("do_lower_case", True)
    keep_accents: bool = _beside("keep_accents", False)
    ids: str | None = _beside("ids", None, rare=True)
    hidden_dropout_prob: float | None = _model(
        None,
        "Dropout rate of embeddings and hidden states. By default the config's.",
        interval="[0, 1)",
    )
    attention_probs_dropout_prob: float | None = _model(
        None,
        "Dropout rate of the attention probabilities. By default the config's.",
        interval="[0, 1)",
    )
    dropout_prob: float = _model(
        0.1,
        "Dropout rate of the task's head. 0.1 is the release's, but 0 for squad_v1.",
        interval="[0, 1)",
    )

    static_lengths: int | None = _features(
        None,
        "Number of lengths (buckets) that batches are padded to, in evaluation at most 6; each is "
        "compiled once (on a CPU the short ones of training together), and more of them mean less "
        "padding. By default 6, or where XLA compiles the whole step as many of these as spare "
        "more time than compiling them takes. 1 pads all batches to max_seq_length; it is the "
        "default for squad_v1, whose loss depends on padding.",
        interval=POSITIVE,
    )
    cached_dir: str | None = _stored(
        None,
        "Directory in which features are stored for later runs. By default features/ in "
        "output_dir.",
    )
    train_feature_file: str | None = _stored(
        None, "Path prefix of the stored features to train on. By default in cached_dir."
    )
    predict_feature_file: str | None = _stored(
        None,
        "Path prefix of the stored features to evaluate and predict. By default in cached_dir.",
    )
    predict_feature_left_file: str | None = _stored(
        None, "No effect: accepted for the release's command lines."
    )

    do_train: bool = _inherited("do_train", False, "True by default for race.")
    train_step: int = _training(
        1000,
        "Number of training steps. 1000 is the release's; 12000 for race, and 3 epochs for SQuAD.",
        interval=POSITIVE,
    )
    num_train_epochs: float | None = _training(
        None,
        "Number of epochs to train, instead of train_step. 3 by default for SQuAD.",
        interval="(0, inf)",
    )
    warmup_step: int = _training(
        0,
        "Number of steps during which the learning rate rises to its peak. 0 is the release's; "
        "1000 for race, and a tenth of all steps for SQuAD.",
        interval=NATURAL,
    )
    warmup_proportion: float | None = _training(
        None,
        "Share of the steps that are warm-up steps, instead of warmup_step. 0.1 by default for "
        "SQuAD.",
        interval="[0, 1]",
    )
    early_stopping_patience: int | None = _training(
        None,
        "Number of evaluations without a better key_metric after which training ends. By default "
        "it runs to the last step.",
        interval=POSITIVE,
    )
    learning_rate: float = _inherited(
        "learning_rate", 5e-5, "5e-5 is the release's; 1e-5 for race."
    )
    save_checkpoints_steps: int = _inherited(
        "save_checkpoints_steps", 1000, "1000 is the release's; 100 for race."
    )
    keep_checkpoint_max: int = _inherited("keep_checkpoint_max", 5, alias="num_keep_checkpoint")

    class_weights: str | None = _loss(
        None,
        "Weights of the classes in the loss. balanced: in inverse proportion to the number of "
        "their examples in train_file; or listed, as in a=1.0,b=2.5, where classes not listed "
        "have 1. By default all have 1.",
    )
    teacher: str | None = _loss(
        None,
        "Output directory of a fine-tuning run of the same task, whose predicted probabilities "
        "are learned in addition to the labels (distillation). Its model may be larger, and have "
        "another vocabulary. It predicts in batches of predict_batch_size.",
    )
    distillation_weight: float = _loss(
        0.5,
        "Weight of the teacher's probabilities in the loss; the labels have the rest.",
        interval="[0, 1]",
    )
    temperature: float = _loss(
        2.0,
        "Number by which the teacher's and the student's logits are divided before they are "
        "compared.",
        interval="(0, inf)",
        rare=True,
    )

    do_eval: bool = _evaluation(
        False,
        "Evaluate each checkpoint and keep the best one. True by default for race, for SQuAD "
        "with do_predict, and for question_answering if there is an eval_file.",
        per_command=True,
    )
    key_metric: str | None = _evaluation(
        None,
        "The metric by which checkpoints are compared, any that the task reports, such as "
        "macro_f1; or eval_loss, whose smallest value is the best. f1 of two classes is that of "
        "the second class in labels.jsonl. By default the task's main metric.",
    )
    do_predict: bool = _evaluation(
        False,
        "Predict the test set with the best checkpoint; after training without do_eval, with the "
        "newest.",
        per_command=True,
    )
    eval_batch_size: int = _evaluation(
        8,
        "Number of examples per evaluation step, over all devices. 8 is the release's.",
        interval=POSITIVE,
    )
    predict_batch_size: int = _evaluation(
        8,
        "Number of examples per prediction step, over all devices. 8 is the release's.",
        interval=POSITIVE,
        rare=True,
    )
    ensemble_dirs: tuple[str, ...] = _evaluation(
        (),
        "Output directories of several runs, separated by commas, whose stored predictions are "
        "averaged; no model is loaded.",
        per_command=True,
    )

    export_dir: str | None = _export(
        None,
        "New directory in which the best checkpoint is written as a SavedModel that takes raw "
        "text. By default nothing is exported.",
    )
    threshold_to_export: float = _export(
        math.nan,
        "Decision threshold stored in the SavedModel: with two classes, the minimum probability "
        "of the second one to be the answer; for multilabel, the minimum probability of a label "
        '(0.5 by default); for squad_v2, the null odds (score of "no answer") at or above which '
        "it gives no answer (0 by default). By default (nan), of two classes the likelier one.",
        rare=True,
    )
    use_einsum: bool = setting(
        True, "No effect: accepted for the release's command lines.", group=SPEED, rare=True
    )

    @classmethod
    def of(cls, **values: Any) -> FinetuningSettings:
        """Returns settings with values that count as given, and the task's own defaults.

        A task's name may be in capitals, as in the release's command lines.
        """
        values["task_name"] = values["task_name"].lower()
        defaults: dict[str, Any] = {}
        if values["task_name"] in TASKS:
            # Some defaults depend on other settings.
            known: Any = types.SimpleNamespace(**{f.name: f.default for f in cls.flags()} | values)
            row = TASKS[values["task_name"]]
            defaults = (row.variant(known) if row.variant else row).defaults_for(known)
        if values.get("ensemble_dirs"):  # The predictions already exist.
            defaults |= {"do_train": False, "do_eval": False}
        # A default must not contradict a value given in another unit, such as epochs for steps.
        unset = [name for name in defaults if not {name, cls.same.get(name)} & {*values}]
        own = {name: defaults[name] for name in unset}
        return cls(**{**own, **values}, given=frozenset(values))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task_name not in TASKS:
            names = ", ".join(TASKS)
            raise ValueError(f"`task_name` must be one of {names}, not {self.task_name!r}")
        if not (self.do_train or self.do_eval or self.do_predict or self.export_dir):
            raise ValueError(
                "nothing to do: set `do_train`, `do_eval`, `do_predict` or `export_dir`"
            )
        if len(self.choice_columns) == 1:
            raise ValueError(
                f"`choice_columns` must name at least two columns, not only "
                f"{self.choice_columns[0]}"
            )
        if os.path.realpath(self.output_dir or "") in map(os.path.realpath, self.ensemble_dirs):
            raise ValueError(
                "`output_dir` is one of `ensemble_dirs`, whose predictions would be replaced: give "
                "another directory"
            )

    def following(self, recorded: Mapping[str, Any]) -> FinetuningSettings:
        """See Settings. A setting that is given also replaces the same one in another unit."""
        kept = {n: value for n, value in recorded.items() if self.same.get(n) not in self.given}
        return super().following(kept)

    def with_steps(self, num_examples: int) -> FinetuningSettings:
        """Returns the settings with epochs and shares of steps converted to numbers of steps."""
        steps, warmup = self.train_step, self.warmup_step
        if self.num_train_epochs is not None:
            steps = max(1, int(num_examples / self.train_batch_size * self.num_train_epochs))
        if steps * self.train_batch_size > length_buckets.MOST_ROWS:
            raise ValueError(
                f"{steps} steps of {self.train_batch_size} examples exceed a run's maximum of "
                f"{length_buckets.MOST_ROWS} examples: lower `train_step` or `num_train_epochs`"
            )
        if self.warmup_proportion is not None:
            warmup = int(self.warmup_proportion * steps)
        others = {"num_train_epochs": None, "warmup_proportion": None}
        return dataclasses.replace(self, train_step=steps, warmup_step=warmup, **others)

    @property
    def rate(self) -> dict[str, Any]:
        return {"num_train_steps": self.train_step, "num_warmup_steps": self.warmup_step}

    @property
    def predicts(self) -> bool:
        """Whether a model predicts the test set, or a teacher the training set."""
        return self.do_predict or bool(self.do_train and self.teacher)

    @property
    def threshold(self) -> float | None:
        """The threshold to export; None for the default."""
        return None if math.isnan(self.threshold_to_export) else self.threshold_to_export

    def feature_prefix(self, is_training: bool) -> str:
        """Returns the path prefix of stored features."""
        # "dev" and "test" share a file: they may be the same examples.
        folder = self.cached_dir or os.path.join(self.output_dir or "", "features")
        purpose = "train" if is_training else "predict"
        given = self.train_feature_file if is_training else self.predict_feature_file
        return given or os.path.join(folder, f"{self.task_name}_{purpose}")
