"""The settings that albert-pretrain and albert-finetune share; recipes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from absl import flags

from albert_tf.console.settings import NATURAL, POSITIVE, Settings, setting
from albert_tf.training.optimizers import OPTIMIZERS, SCHEDULES

if TYPE_CHECKING:  # --help needs no TensorFlow.
    from albert_tf.training.interfaces import Devices, Task
    from albert_tf.training.trainer import Trainer

# Group headings of --help.
MODEL, TRAINING, LOSS = "Model and output", "Training", "Loss"
SPEED, TPU = "Speed and memory", "TPU"
BACKENDS = ("tensorflow", "jax")

_model = functools.partial(setting, group=MODEL)
_training = functools.partial(setting, group=TRAINING)
_adam = functools.partial(setting, group=TRAINING, interval="[0, 1)", rare=True)
_speed = functools.partial(setting, group=SPEED)
_tpu = functools.partial(setting, group=TPU, per_command=True, rare=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingSettings(Settings):
    """The settings of both training commands; each has more, and some defaults of its own."""

    # The command's recipes: name -> flag file.
    recipes: ClassVar[Mapping[str, str]] = {}
    # At most one setting of each pair may be given.
    exclusive: ClassVar[tuple[tuple[str, str], ...]] = ()

    albert_config_file: str | None = _model(
        None,
        "The model's config (sizes, activation, dropout rates): a JSON file, or a name such as "
        "albert_base_v2.",
    )
    output_dir: str | None = _model(
        None,
        "Directory for checkpoints, results and TensorBoard files. An interrupted run resumes "
        "from the newest checkpoint there, with the settings in its run.json unless others are "
        "given; those that it can't follow any more are refused.",
        per_command=True,
    )
    init_checkpoint: str | None = _model(
        None,
        "Weights to start from if output_dir contains no checkpoint: a checkpoint prefix, file or "
        "directory, in any layout that albert_tf.conversion reads, or hf://OWNER/NAME on the "
        "Hugging Face Hub.",
    )
    num_hidden_layers: int | None = _model(
        None,
        "Number of layers, if not the config's. Since layers share their weights, those of "
        "init_checkpoint fit a model that is less deep, and faster, or deeper.",
        interval=POSITIVE,
        rare=True,
    )

    recipe: str | None = _model(
        None,
        "Name of a recipe, a list of flags that comes with albert_tf; other flags override it.",
        per_command=True,
    )

    do_train: bool = _training(False, "Train the model.", per_command=True)
    accept_other_records: bool = _training(
        False,
        "Resume also with other records or examples, or others to evaluate on, than the run had. "
        "Without it they are refused; files that were only moved or renamed are the same.",
        per_command=True,
        rare=True,
    )
    optimizer: str = _training(
        "adamw",
        "Optimizer. The release pre-trains with LAMB, which allows large batches, and fine-tunes "
        "with AdamW. muon makes the updates of the encoder's matrices orthogonal, and updates "
        "other weights as AdamW does.",
        choices=OPTIMIZERS,
    )
    adam_share: float = _training(
        1.0,
        "With muon: learning rate of the weights outside the encoder's matrices, as a share of the "
        "matrices'.",
        interval="(0, inf)",
        rare=True,
    )
    learning_rate: float = _training(
        5e-5,
        "Peak learning rate: reached by linear warm-up, then decayed as schedule says.",
        interval="(0, inf)",
    )
    schedule: str = _training(
        "linear",
        "Learning rate after the warm-up. linear, as in the release: decays to 0 at the last step; "
        "constant: stays; wsd: stays, but decays to 0 over the last decay_steps.",
        choices=SCHEDULES,
    )
    decay_steps: int | None = _training(
        None,
        "Number of steps over which wsd's learning rate decays. By default a tenth of all steps.",
        interval=POSITIVE,
        rare=True,
    )
    weight_decay_rate: float = _training(
        0.01,
        "Fraction of a weight that is added to its update, except of biases and layer norms. 0.01 "
        "is the release's.",
        interval="[0, inf)",
        rare=True,
    )
    adam_beta1: float = _adam(0.9, "Decay of the first moment. 0.9 is the release's.")
    adam_beta2: float = _adam(0.999, "Decay of the second moment. 0.999 is the release's.")
    adam_epsilon: float = _adam(1e-6, "Added to the second moment's root. 1e-6 is the release's.")
    elastic_depths: tuple[str, ...] = _training(
        (),
        "Numbers of layers for which the model is trained as well as for all its layers: each step "
        "draws one of them, and adds its losses. The model may then be used with so many layers. "
        "By default it is trained for one depth.",
        rare=True,
    )
    elastic_weight: float = _training(
        1.0, "Weight of the losses of elastic_depths.", interval="(0, inf)", rare=True
    )
    train_batch_size: int = _training(
        32,
        "Number of examples per training step, over all devices. The default is the release's.",
        interval=POSITIVE,
    )
    random_seed: int = _training(
        12345,
        "Seed for weight initialisation, example order, dropout and, in pre-training, dynamic "
        "masks. The same seed repeats a run.",
        interval="[0, 4294967295]",  # NumPy's.
    )
    save_checkpoints_steps: int = _training(
        1000, "Number of training steps between checkpoints.", interval=POSITIVE
    )
    keep_checkpoint_max: int = _training(
        5,
        "Number of newest checkpoints to keep; 0 keeps all. The best one is always kept.",
        interval=NATURAL,
    )

    backend: str | None = _speed(
        None,
        "Framework to train with; records and checkpoints are the same for both. By default the "
        "one that KERAS_BACKEND names, else tensorflow.",
        choices=BACKENDS,
        per_command=True,
    )
    precision: str = _speed(
        "float32",
        "Data type of the computation. bfloat16 saves time and memory on GPUs and TPUs; weights "
        "and optimizer state stay float32. The release computes in float32.",
        choices=["float32", "bfloat16"],
    )
    jit_compile: bool | None = _speed(
        None,
        "Compile the training step with XLA: by default on a GPU only. The first step then takes "
        "longer. Always done on a TPU, and by JAX.",
    )
    recompute: bool = _speed(
        False,
        "Recompute each layer's activations in the backward pass instead of storing them: less "
        "memory, more time.",
    )
    gradient_accumulation_steps: int = _speed(
        1,
        "Number of parts into which each device splits its share of a batch, to process them one "
        "after the other. More parts need less memory; the result is the same but for dropout's "
        "masks.",
        interval=POSITIVE,
    )
    shard_optimizer_state: bool = _speed(
        False,
        "Keep on each device only its share of the optimizer's state, not all of it: less memory, "
        "with --backend=jax on several devices.",
        per_command=True,
    )
    iterations_per_loop: int = _speed(
        1000,
        "Maximum number of steps per on-device loop; the host logs and checks the loss between "
        "loops. The default is the release's.",
        interval=POSITIVE,
    )

    use_tpu: bool = _tpu(
        False,
        "Run on a TPU. If false, run on all GPUs of this machine, or on its CPU; TF_CONFIG adds "
        "other machines.",
        rare=False,
    )
    tpu_name: str | None = _tpu(
        None,
        "Name or gRPC address of the TPU. By default the one of the TPU VM that runs this script.",
    )
    tpu_zone: str | None = _tpu(
        None, "Google Cloud zone of the TPU. By default this machine's own zone."
    )
    gcp_project: str | None = _tpu(
        None, "Google Cloud project of the TPU. By default this machine's own."
    )
    master: str | None = _tpu(None, "gRPC address of the TPU; only used if tpu_name is not set.")
    num_tpu_cores: int = _tpu(
        8,
        "Number of cores that the TPU must have; another number is an error. 8 is the release's.",
        interval=POSITIVE,
    )

    def __post_init__(self) -> None:
        if not self.output_dir:
            raise ValueError("`output_dir` is empty: give a directory, or . for the current one")
        # Defaults do not count: only settings that are given exclude each other.
        for first, second in self.exclusive:
            if all(name in self.given and getattr(self, name) for name in (first, second)):
                raise ValueError(f"`{first}` and `{second}` exclude each other: set one of them")

    @property
    def dtype_policy(self) -> str:
        """The Keras dtype policy that `precision` stands for."""
        return "mixed_bfloat16" if self.precision == "bfloat16" else "float32"

    @property
    def rate(self) -> dict[str, Any]:
        """Arguments of create_optimizer: the last step, the end of the warm-up, and others."""
        raise NotImplementedError

    @property
    def loop(self) -> dict[str, Any]:
        """Arguments of Trainer.train: how often it logs and saves, and what it keeps."""
        return {
            "steps_per_loop": self.iterations_per_loop,
            "save_steps": self.save_checkpoints_steps,
            "keep_max": self.keep_checkpoint_max,
        }

    def make_trainer(self, task: Task, devices: Devices) -> Trainer:
        """Returns the Trainer of a run, whose weights are still random."""
        from albert_tf.tasks.elastic import ElasticTask
        from albert_tf.training import optimizers, trainer
        from albert_tf.training.interfaces import StepSettings

        own: dict[str, Any] = {"adam_share": self.adam_share} if self.optimizer == "muon" else {}
        make_optimizer = functools.partial(
            optimizers.create_optimizer,
            self.learning_rate,
            optimizer=self.optimizer,
            schedule=self.schedule,
            decay_steps=self.decay_steps,
            **self.rate,
            weight_decay_rate=self.weight_decay_rate,
            beta_1=self.adam_beta1,
            beta_2=self.adam_beta2,
            epsilon=self.adam_epsilon,
            **own,
        )
        jit_compile = False if self.use_tpu else self.jit_compile  # A TPU always compiles.
        step = StepSettings(self.random_seed, jit_compile, self.gradient_accumulation_steps)
        made = make_optimizer if self.do_train else None
        if self.elastic_depths:
            task = ElasticTask(task, self.elastic_depths, self.elastic_weight, self.do_train)
        return trainer.Trainer(task, devices, self.output_dir, made, step)

    def create_devices(self) -> Devices:
        """Returns the devices that the settings name."""
        import keras

        # KERAS_BACKEND may name a backend that has no devices here.
        running = keras.config.backend()
        if running == "jax":
            from albert_tf.training import jax_devices

            return jax_devices.connect(self.use_tpu, self.num_tpu_cores, self.shard_optimizer_state)
        if running != "tensorflow":
            raise ValueError(
                f"Keras runs on {running}: set `backend` to one of {', '.join(BACKENDS)}"
            )
        from albert_tf.training import tensorflow_devices
        from albert_tf.training.tensorflow_devices import TensorFlowDevices

        # TF_CONFIG, a TPU's name or the visible GPUs decide which strategy this is.
        address = self.tpu_name, self.tpu_zone, self.gcp_project, self.master
        return TensorFlowDevices(
            tensorflow_devices.create_strategy(self.use_tpu, *address, self.num_tpu_cores)
        )

    def check_batch_sizes(self, devices: Devices, **used: bool) -> None:
        """Checks that batches can be split evenly over the devices.

        `used` says by name which batch sizes are used besides the training's.
        """
        for name, is_used in {**used, "train_batch_size": self.do_train}.items():
            # Evaluations are divided among replicas only, a training batch also into its parts.
            parts = self.gradient_accumulation_steps if name == "train_batch_size" else 1
            divisor = devices.num_replicas * parts
            if is_used and getattr(self, name) % divisor:
                over = f" times `gradient_accumulation_steps` {parts}" if parts > 1 else ""
                raise ValueError(
                    f"`{name}` {getattr(self, name)} can't be split evenly over "
                    f"{devices.num_replicas} replica(s){over}: make it a multiple of {divisor}"
                )

    @classmethod
    def implied(cls, values: flags.FlagValues) -> list[str]:
        """Returns the recipe's flags, without those that a given flag excludes."""
        if values.recipe is None:
            return []
        # absl reads the file, with its comments and nested flag files.
        named = f"--flagfile={cls.recipes[values.recipe]}"
        recipe = flags.FlagValues().read_flags_from_files([named], force_gnu=False)
        given = [name for name in values if values[name].present and values[name].value]
        pairs = [*cls.exclusive, *(pair[::-1] for pair in cls.exclusive)]
        replaced = tuple(f"--{name}=" for name, flag in pairs if flag in given)
        return [each for each in recipe if not each.startswith(replaced)]
