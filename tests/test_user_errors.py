from __future__ import annotations

import pytest
import tensorflow as tf
from absl import logging

from albert_tf import user_errors


class OurOwnError(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("12 expected"), "error: 12 expected"),
        (FileNotFoundError("no such file"), "error: no such file"),
        (OurOwnError("stopped"), "error: stopped"),
        (ValueError("é \x1b[2Jw\n\udc80"), r"error: é \x1b[2Jw\n\udc80"),
        (
            tf.errors.DataLossError(None, None, "{{function_node a}} at:\nbad record [Op:Read]"),
            "error: bad record",
        ),
    ],
)
def test_one_line_and_where_it_is_from_for_those_who_ask(error, line, caplog):
    before = logging.get_verbosity()
    logging.set_verbosity(logging.DEBUG)
    with pytest.raises(SystemExit) as ended, user_errors.in_one_line(OurOwnError):
        raise error
    logging.set_verbosity(before)
    assert ended.value.code == line
    assert "where the error is from:" in caplog.text
    assert "in_one_line" in caplog.text


def test_mistakes_of_the_program_are_raised():
    with pytest.raises(KeyError), user_errors.in_one_line():
        raise KeyError("x")
