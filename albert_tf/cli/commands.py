"""Entry points of the console commands: --help and wrong flags need no TensorFlow."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from inspect import getdoc
from typing import get_type_hints

from albert_tf.cli.training_settings import TrainingSettings
from albert_tf.console import settings, tensorflow_logs


def pretrain() -> None:
    r"""Pre-trains ALBERT on the records of create_pretraining_data.py, and evaluates it.

    Takes all flags of the release's run_pretraining.py, with its names and defaults, and more:

        albert-pretrain --albert_config_file=albert_base_v2 --input_file='*.tfrecord' \
            --output_dir=out

    In a clone `python run_pretraining.py` is the same.
    """
    from albert_tf.cli.pretraining_settings import PretrainingSettings

    _run_training(PretrainingSettings, "albert_tf.cli.pretrain", getdoc(pretrain))


def finetune() -> None:
    r"""Fine-tunes ALBERT on a task, evaluates and predicts: GLUE, RACE, SQuAD, your own table.

    Takes all flags of the release's run_classifier.py, run_race.py, run_squad_v1.py and
    run_squad_v2.py, with their names and defaults, and more:

        albert-finetune --task_name=mrpc --data_dir=glue --init_checkpoint=albert_base \
            --output_dir=out --do_train --do_eval

    In a clone `python run_finetune.py` is the same.
    """
    from albert_tf.cli.finetune_settings import FinetuningSettings

    _run_training(FinetuningSettings, "albert_tf.cli.finetune", getdoc(finetune))


def _run_training(cls: type[TrainingSettings], module: str, doc: str | None) -> None:
    # The module imports TensorFlow, on the backend that the flags name.
    def main(given: TrainingSettings) -> None:
        tensorflow_logs.import_tensorflow(given.backend)
        importlib.import_module(module).main(given)

    settings.run_script(cls, main, doc)


def _command(name: str) -> Callable[[], None]:
    """Returns the entry point of a module in cli/; its docstring is what --help prints."""

    def run() -> None:
        module = importlib.import_module(f"albert_tf.cli.{name}")
        # The annotation of `main` names the settings.
        cls = get_type_hints(module.main)["settings"]
        settings.run_script(cls, module.main, module.__doc__)

    return run


# These three are also scripts in a clone's data/.
create_pretraining_data = _command("create_pretraining_data")
train_sentencepiece = _command("train_sentencepiece")
extend_vocabulary = _command("extend_vocabulary")
convert = _command("convert")
export = _command("export")
predict = _command("predict")
serve = _command("serve")


def inspect() -> None:
    """Looks inside models: `albert-inspect COMMAND --help` lists a command's flags."""
    from albert_tf.cli.inspect import COMMANDS

    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in COMMANDS:
        # Without a known command, list all of them with the first line of their help.
        lines = [inspect.__doc__ or "", ""]
        for each, (main, _) in COMMANDS.items():
            about = (getdoc(main) or "").partition("\n")[0]
            lines.append(f"  {each:12}{about}")
        sys.exit("\n".join(lines))
    # --help and errors call the command "albert-inspect NAME".
    main, cls = COMMANDS[name]
    sys.argv = [f"{sys.argv[0]} {name}", *sys.argv[2:]]
    settings.run_script(cls, main, getdoc(main))
