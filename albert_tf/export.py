"""Models that take raw text, by their public names; `python -m albert_tf.export`."""

from __future__ import annotations

if __name__ == "__main__":
    from albert_tf.cli import commands

    commands.export()
else:
    from albert_tf.cli.export import main as main
    from albert_tf.serving.graphs.base import ServedModel
    from albert_tf.serving.graphs.choose import Chooser
    from albert_tf.serving.graphs.classify import Classifier
    from albert_tf.serving.graphs.embed import Embedder
    from albert_tf.serving.graphs.fill import MaskFiller
    from albert_tf.serving.graphs.span import QuestionAnswerer
    from albert_tf.serving.graphs.tag import Tagger
    from albert_tf.serving.saved_model import save

    __all__ = [
        "Chooser",
        "Classifier",
        "Embedder",
        "MaskFiller",
        "QuestionAnswerer",
        "ServedModel",
        "Tagger",
        "save",
    ]
