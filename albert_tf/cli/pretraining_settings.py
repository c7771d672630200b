"""The settings of albert-pretrain: the release's, with its defaults, and a few more."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar

from albert_tf import config
from albert_tf.cli.training_settings import MODEL, SPEED, TPU, TRAINING, TrainingSettings
from albert_tf.console import tf_config
from albert_tf.console.settings import NATURAL, POSITIVE, REQUIRED, setting, with_default
from albert_tf.generator.settings import MASKING, MaskSettings
from albert_tf.records.masking import MaskingSettings
from albert_tf.records.spec import RowFormat
from albert_tf.storage import checkpoint

_RECORDS, _EVALUATION = "Records", "Evaluation"
_RECIPES = config.shipped_recipes("pretraining")
# Placeholder for the last step of a timed run until its decay is scheduled.
UNKNOWN_STEPS = 2**31 - 1

_inherited = functools.partial(with_default, TrainingSettings)
_records = functools.partial(setting, group=_RECORDS)
_training = functools.partial(setting, group=TRAINING)
_evaluation = functools.partial(setting, group=_EVALUATION)
_masking = functools.partial(setting, group=MASKING)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingSettings(TrainingSettings, MaskSettings):
    """The settings of run_pretraining.py."""

    headings = (MODEL, _RECORDS, TRAINING, _EVALUATION, MASKING, SPEED, TPU)
    recipes: ClassVar[Mapping[str, str]] = _RECIPES
    # A branch and a timed run each determine their last step themselves. Weights to start from
    # replace all random ones.
    exclusive = (
        *(("decay_from", name) for name in ("init_checkpoint", "num_train_steps", "train_minutes")),
        ("train_minutes", "num_train_steps"),
        *(("nearby_attention", name) for name in ("init_checkpoint", "decay_from")),
    )

    albert_config_file: str | None = _inherited(
        "albert_config_file", None, "By default the one beside the weights."
    )
    output_dir: str | None = _inherited(
        "output_dir", None, "Only an evaluation of init_checkpoint needs none."
    )
    init_checkpoint: str | None = _inherited(
        "init_checkpoint",
        None,
        "By default weights are randomly initialised. With --nodo_train these weights are "
        "evaluated once.",
    )
    vocab_size: int | None = setting(
        None,
        "Number of pieces in the records' vocabulary, if not the config's: for a config that was "
        "written for another vocabulary.",
        group=MODEL,
        interval=POSITIVE,
    )
    init_from_group0: bool = setting(
        False,
        "Fill the layer groups that init_checkpoint lacks with its group 0: for a config with a "
        "larger num_hidden_groups.",
        group=MODEL,
    )
    nearby_attention: bool = setting(
        False,
        "Begin with random weights with which a position attends to itself and its neighbours: "
        "sinusoids as position embeddings, and keys equal to queries. Training then needs fewer "
        "tokens.",
        group=MODEL,
    )
    recipe: str | None = _inherited("recipe", None, choices=tuple(_RECIPES))

    decay_from: str | None = setting(
        None,
        "Checkpoint of another run to branch off from, in a new output_dir: with its state and its "
        "settings, but for decay_steps in which the learning rate decays to 0, by default a tenth "
        "of the steps before. The other run stays as it is; its rate must be stable there. Of a "
        "directory it is the newest checkpoint when the branch begins.",
        group=MODEL,
    )
    decay_from_any: bool = setting(
        False,
        "Branch also where the rate is not stable, and decay from the one that it has there.",
        group=MODEL,
        per_command=True,
        rare=True,
    )

    input_file: str = _records(
        REQUIRED,
        "TFRecord files of albert-create-pretraining-data: paths or glob patterns, separated by "
        "commas.",
    )
    max_seq_length: int = _records(
        512,
        "Length of a row in tokens, with [CLS], [SEP] and padding; must be the length that the "
        "records were made with. 512 is the paper's.",
        interval=POSITIVE,
    )
    max_predictions_per_seq: int = _records(
        20,
        "Maximum number of masked tokens per row; must be the number that the records were made "
        "with. 0 means the records' number or, with --masking=dynamic, the number that a full row "
        "needs. 20 is the release's.",
        interval=NATURAL,
    )
    max_examples_per_row: int = _records(
        1,
        "Maximum number of examples packed into a row; must be the number that the records were "
        "made with. Above 1, batch sizes count rows. 1 means not packed.",
        interval=POSITIVE,
    )
    masking: str | None = _records(
        None,
        "static: use the masks in the records. dynamic: draw new masks each time an example is "
        "fed, as the flags under Masking say, for records made by albert-create-pretraining-data "
        "--masking=dynamic. By default static, as in the release, unless masked_lm_prob is set.",
        choices=["static", "dynamic"],
    )

    do_train: bool = _inherited("do_train", True, "True by default if there is an output_dir.")
    num_train_steps: int = _training(
        125000,
        "Number of training steps, at the last of which the learning rate is 0 unless it stays "
        "constant. 125000 is the paper's.",
        interval=POSITIVE,
    )
    train_minutes: float | None = _training(
        None,
        "Minutes that the training takes, in place of num_train_steps: wsd's decay begins when "
        "there is time left for its steps, and then they are settled. After a kill or stop those "
        "before its checkpoint count.",
        interval="(0, inf)",
    )
    num_warmup_steps: int = _training(
        3125,
        "Number of steps during which the learning rate rises to its peak. 3125 is the paper's.",
        interval=NATURAL,
    )
    start_warmup_step: int = _training(
        0,
        "Step at which the warm-up starts. Before it the learning rate is negative, as in the "
        "release.",
        interval=NATURAL,
        rare=True,
    )
    poly_power: float = _training(
        1.0,
        "Exponent of the learning rate's polynomial decay. 1, the release's, is linear.",
        interval="(0, inf)",
        rare=True,
    )
    sentence_order_weight: float = _training(
        1.0,
        "Weight of the sentence-order loss, in the reported loss too. 1 is the paper's; 0 trains "
        "masked LM alone: the pooler and the sentence-order head do not change.",
        interval="[0, inf)",
    )
    optimizer: str = _inherited("optimizer", "lamb")
    learning_rate: float = _inherited(
        "learning_rate", 0.00176, "0.00176 is the paper's for batches of 4096."
    )
    train_batch_size: int = _inherited("train_batch_size", 4096)
    save_checkpoints_steps: int = _inherited(
        "save_checkpoints_steps", 5000, "5000 is the release's."
    )

    do_eval: bool = _evaluation(
        False,
        "Evaluate checkpoints on input_file, and keep the best one. With --nodo_train, those of a "
        "training run in another process, whose records may be others, up to its last step; or "
        "once other weights: init_checkpoint, or what was converted into output_dir.",
        per_command=True,
    )
    eval_batch_size: int = _evaluation(
        64,
        "Number of examples per evaluation step, over all devices. 64 is the release's.",
        interval=POSITIVE,
    )
    max_eval_steps: int = _evaluation(
        100, "Maximum number of evaluation steps. 100 is the release's.", interval=POSITIVE
    )

    masked_lm_prob: float = with_default(
        MaskSettings,
        "masked_lm_prob",
        0.0,
        "Above 0 it implies --masking=dynamic, for only those masks are drawn here. 0 means 0.15.",
        alias="masked_lm_budget",
    )
    eval_masked_lm_prob: float = _masking(
        MaskingSettings.masked_lm_prob,
        "Share of the tokens that dynamic masking masks in an evaluation, with the paper's shares "
        "of [MASK] and random pieces: 0.15, whatever the training's, so that losses compare.",
        interval="(0, 1]",
    )

    @classmethod
    def of(cls, **values: Any) -> PretrainingSettings:
        """Returns settings with values that count as given; an evaluation needs no output_dir."""
        if values.get("decay_from"):  # The same run, however its path is spelled.
            values["decay_from"] = checkpoint.spelled_out(values["decay_from"])
        if "output_dir" not in values and values.get("do_eval") and values.get("init_checkpoint"):
            return cls(**{"do_train": False, **values}, given=frozenset(values))
        return super().of(**values)

    def __post_init__(self) -> None:
        if self.do_train or not self.init_checkpoint or self.output_dir is not None:
            super().__post_init__()
        if not self.do_train and not self.do_eval:
            raise ValueError("nothing to do: set `do_train` or `do_eval`")
        if not self.do_train and tf_config.num_workers() > 1:
            # The processes that train would mistake it for one of them.
            raise ValueError(
                "`do_eval` without `do_train` runs in a single process: unset TF_CONFIG"
            )
        if self.masking == "static" and self.masked_lm_prob:
            raise ValueError(
                f"`masked_lm_prob={self.masked_lm_prob}` draws masks during training, "
                "`masking=static` uses those in the records: leave one of them out"
            )
        tpu = self.tpu_name or self.master or "local"
        if self.has_dynamic_masks and self.use_tpu and tpu != "local":
            raise ValueError(
                f"`masking=dynamic` draws masks in this process, which the remote TPU {tpu!r} "
                "can't call: run on the TPU VM itself without `tpu_name` and `master`, or use "
                "records with masks"
            )

    @property
    def rate(self) -> dict[str, Any]:
        names = ("num_train_steps", "num_warmup_steps", "poly_power", "start_warmup_step")
        return {name: getattr(self, name) for name in names}

    @property
    def has_dynamic_masks(self) -> bool:
        """Whether masks are drawn during training."""
        return self.masking == "dynamic" or (self.masking is None and self.masked_lm_prob > 0)

    def mask_settings(self, row_format: RowFormat, **changes: float) -> MaskingSettings:
        """Returns dynamic masking's settings in training, with `changes`."""
        share = self.masked_lm_prob or MaskingSettings.masked_lm_prob
        most, length = self.max_predictions_per_seq, row_format.max_seq_length
        return self.masks(row_format, most, length, **{"masked_lm_prob": share, **changes})

    def eval_mask_settings(self, row_format: RowFormat) -> MaskingSettings:
        """Returns dynamic masking's settings in an evaluation, with the paper's shares."""
        papers = ("mask_replace_prob", "random_replace_prob")
        shares = {name: getattr(MaskingSettings, name) for name in papers}
        return self.mask_settings(row_format, masked_lm_prob=self.eval_masked_lm_prob, **shares)
