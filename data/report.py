"""What a run read and wrote: counted as it goes, block by block, and added up."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import instances
import numpy as np


@dataclasses.dataclass
class Report:
    """What was read and written, counted as it goes."""

    documents: int = 0
    input_tokens: int = 0
    unknown_tokens: int = 0
    instances: int = 0
    output_tokens: int = 0
    masked_tokens: int = 0
    label_1: int = 0
    single_segments: int = 0
    seconds: float = 0.0

    def count_input(self, block: instances.TokenBlock, unk_id: int) -> None:
        """Adds a block of documents."""
        self.documents += len(block.documents)
        self.input_tokens += len(block.tokens)
        self.unknown_tokens += int((block.tokens == unk_id).sum())

    def count_output(self, batch: instances.Instances, examples: dict[str, np.ndarray]) -> None:
        """Adds a batch of finished examples."""
        self.instances += len(batch.seeds)
        self.output_tokens += int(examples["input_mask"].sum())
        self.masked_tokens += int(examples["masked_lm_weights"].sum())
        self.label_1 += int(examples["sentence_order_labels"].sum())
        self.single_segments += int(batch.pairs[:, -1].sum())

    def merge(self, other: Report) -> None:
        """Adds what another part of the run counted."""
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def to_json(self) -> dict[str, Any]:
        """A dictionary for json.dump."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Report:
        """What `to_json` made."""
        return cls(**value)

    def lines(self) -> list[str]:
        """The report in words."""
        return [
            f"read {self.documents:,} documents, {self.input_tokens:,} tokens, "
            f"{self.unknown_tokens / self.input_tokens:.3%} of them [UNK]",
            f"wrote {self.instances:,} instances, {self.output_tokens:,} tokens, "
            f"{self.masked_tokens / self.output_tokens:.2%} of them masked",
            f"label 1 (swapped, or B from a random document): "
            f"{self.label_1 / self.instances:.2%}; chunks of one segment, which take B from a "
            f"random document: {self.single_segments / self.instances:.2%}",
            f"{self.seconds:.1f} seconds, {self.output_tokens / self.seconds:,.0f} output tokens/s",
        ]
