import pytest

from albert_tf.training.deadline import Deadline


@pytest.mark.parametrize(
    ("seconds", "loops", "expected"),
    [
        # Steps, seconds, and whether a loop was compiled; and the decay, after step 7.
        (100, [(1, 5, True), (1, 5, True), (5, 5, False)], (72, 82)),  # 75 s left: 10 to compile.
        (10, [(7, 7, False)], (7, 10)),  # No time for ten steps of decay.
        (5, [(7, 7, False)], (7, 8)),  # No time at all: the decay has one step.
        (100, [(1, 5, True)], (8, None)),  # The pace is not known yet.
    ],
)
def test_a_decay_lies_ahead(seconds, loops, expected):
    deadline = Deadline(seconds, 10, settle=lambda *steps: None)
    for loop in loops:
        deadline.add(*loop)
    assert deadline.decay(7) == expected


@pytest.mark.parametrize(
    ("paces", "decay_steps", "first", "last"),
    [
        # Seconds per step, from a step on; of 100 s, compiling takes twice the first step's.
        ({0: 1.0}, 10, 89, 99),
        ({0: 4.0}, 10, 14, 24),
        ({0: 4.0}, None, 22, 24),  # By default, a tenth.
        ({0: 4.0, 10: 1.0}, 10, 56, 66),
        ({0: 1.0, 80: 4.0}, 10, 82, 91),  # The pace is that of the later half.
        ({0: 99.0}, None, 1, 2),
        ({0: 200.0}, 10, 1, 2),
    ],
)
def test_a_decay_begins_when_it_is_time(paces, decay_steps, first, last):
    """Whatever the pace of the steps is, and even if it changes."""
    deadline = Deadline(100.0, decay_steps, settle=lambda *steps: None)
    for step in range(1, 100):
        pace = next(paces[start] for start in sorted(paces, reverse=True) if start < step)
        deadline.add(1, pace, compiled=step == 1)
        found = deadline.decay(step)
        if found[0] == step:
            break
    assert found == (first, last)
