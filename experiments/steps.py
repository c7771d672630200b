"""What a step is: one command, in a directory named by a digest of all that shapes it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

SCRIPTS = {
    "text": "data/prepare_sotu.py",
    "part": "experiments/part.py",
    "vocabulary": "data/train_sentencepiece.py",
    "extend": "data/extend_vocabulary.py",
    "records": "data/create_pretraining_data.py",
    "unigram": "experiments/unigram.py",
    "pretrain": "run_pretraining.py",
    "evaluate": "run_pretraining.py",
    "documents": "experiments/documents.py",
    "words": "experiments/words.py",
    "measure": "experiments/measure.py",
    "finetune": "run_finetune.py",
}
_KEY_CHARACTERS = 12


@dataclasses.dataclass(frozen=True)
class Step:
    """One command.

    Attributes:
      kind: A key of SCRIPTS.
      flags: The script's; {NAME} stands for the directory of a step in `needs`, {out} for its own.
      needs: Keys of other steps, by what flags call them.
      config: The model's, if it needs one: {out}/albert_config.json.
      files: Digests of the user's files that flags name.
    """

    kind: str
    flags: dict[str, Any]
    needs: dict[str, str]
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    files: dict[str, str] = dataclasses.field(default_factory=dict)

    def to_json(self) -> str:
        """Returns all fields, always in the same order."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @property
    def key(self) -> str:
        """Its name: the kind and a digest of the rest."""
        digest = hashlib.sha256(self.to_json().encode()).hexdigest()
        return f"{self.kind}-{digest[:_KEY_CHARACTERS]}"
