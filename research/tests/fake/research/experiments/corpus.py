"""Stands for the project's: three pieces in two words."""

import json
import pathlib
import sys

flags = dict(argument.removeprefix("--").split("=", 1) for argument in sys.argv[1:])
if "words_file" in flags:
    pathlib.Path(flags["words_file"]).write_text(json.dumps({"pieces": 3, "words": 2}))
