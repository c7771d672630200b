"""Models that take raw text, by their public names; `python -m albert_tf.export`."""

from __future__ import annotations

if __name__ == "__main__":
    from albert_tf.cli import commands

    commands.export()
else:
    from albert_tf.cli.export import main as main
    from albert_tf.serving.answering import QuestionAnswerer
    from albert_tf.serving.classifying import Chooser, Classifier
    from albert_tf.serving.saved_model import save
    from albert_tf.serving.served_models import MaskFiller, ServedModel
    from albert_tf.serving.tagging import Tagger

    __all__ = [
        "Chooser",
        "Classifier",
        "MaskFiller",
        "QuestionAnswerer",
        "ServedModel",
        "Tagger",
        "save",
    ]
