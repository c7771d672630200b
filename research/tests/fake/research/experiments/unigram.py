"""Stands for the project's: a loss that every cell is well below."""

import json
import pathlib
import sys

flags = dict(argument.removeprefix("--").split("=", 1) for argument in sys.argv[1:])
pathlib.Path(flags["output"]).write_text(json.dumps({"unigram_loss": 7.0}))
