"""The kinds of answers: one row each. A new kind is a file beside this one, and a row here."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from albert_tf.answers.choose import Choose
from albert_tf.answers.classify import Classify
from albert_tf.answers.embed import Embed
from albert_tf.answers.fill import Fill
from albert_tf.answers.kind import Kind, from_json
from albert_tf.answers.span import BeamSpan, Span, SpanOrNone
from albert_tf.answers.tag import Tag
from albert_tf.storage.text_files import json_member

KINDS: tuple[type[Kind], ...] = (Fill, Classify, Tag, Choose, Span, SpanOrNone, BeamSpan, Embed)
# Their names, as in --task.
TASKS = tuple(dict.fromkeys(kind.task for kind in KINDS))


def named(task: str, options: Collection[str]) -> type[Kind]:
    """Returns the kind with this name, one of TASKS, that these options fit best."""
    return with_options([kind for kind in KINDS if kind.task == task], options)


def with_options(kinds: Sequence[type[Kind]], options: Collection[str]) -> type[Kind]:
    """Returns the kind that has most of these options, the first one if several do."""
    return max(kinds, key=lambda kind: len({*kind.option_fields()} & {*options}))


def read(values: Any, where: str) -> Kind:
    """Returns the kind that `Kind.to_json` described."""
    task = json_member(values, "task", where, str)
    if task not in TASKS:
        raise ValueError(f"{where}: task must be one of {', '.join(TASKS)}, not {task!r}")
    return from_json(named(task, values), values, where)
