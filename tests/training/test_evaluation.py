"""Which checkpoints are evaluated, what is written, which one is kept.

Outputs by row are in test_feeding.py.
"""

import pathlib
import types

import numpy as np
import pytest

from albert_tf.storage import bundle, checkpoint, eval_results
from albert_tf.training import evaluation
from albert_tf.training.tensorflow_devices import TensorFlowDevices
from tests.training.toys import one_device

METRICS = {"masked_lm_loss": 3.0, "sentence_order_loss": 0.5, "loss": 3.5}
METRICS["sentence_order_accuracy"] = 0.625


class FakeTrainer:
    """Returns the accuracies that it was given, by step, instead of evaluating checkpoints."""

    def __init__(self, directory: pathlib.Path, accuracies: dict[int, float]) -> None:
        self.output_dir = str(directory)
        self.devices = one_device()
        self.task = types.SimpleNamespace(key_metric="masked_lm_accuracy")
        self.evaluated: list[int] = []
        self.after = lambda step: None
        self._accuracies = accuracies

    def restore(self, prefix: str) -> int:
        self.step = int(checkpoint.read(prefix)["global_step"])
        return self.step

    def evaluate(self, input_fn) -> dict[str, float]:
        self.evaluated.append(self.step)
        self.after(self.step)
        return {**METRICS, "masked_lm_accuracy": self._accuracies[self.step]}


def save(directory: pathlib.Path, *steps: int, keep_max: int = 0) -> None:
    for step in steps:
        checkpoint.save(str(directory), step, {"global_step": np.int64(step)}, keep_max)


def evaluate(trainer: FakeTrainer, last_step: int) -> dict[str, float]:
    return evaluation.evaluate_checkpoints(trainer, None, lambda: last_step, {})


def follow(directory: pathlib.Path, accuracies: dict[int, float]) -> None:
    """Saves checkpoints one by one, and evaluates each as if it were the last."""
    for step, accuracy in accuracies.items():
        save(directory, step)
        evaluate(FakeTrainer(directory, {step: accuracy}), step)


def best_step(directory: pathlib.Path) -> int:
    return int(checkpoint.read(str(directory / "model.ckpt-best"))["global_step"])


def block(directory: pathlib.Path, step: int, accuracy: float, is_best: bool) -> list[str]:
    metrics = sorted({"global_step": step, **METRICS, "masked_lm_accuracy": accuracy}.items())
    return [f"{name} = {value}" for name, value in metrics] + [
        f"saved {directory}/model.ckpt-{step}.{end} to {directory}/model.ckpt-best.{end}"
        for end in ("meta", "data-00000-of-00001", "index")
        if is_best
    ]


def lines(directory: pathlib.Path) -> list[str]:
    return (directory / "eval_results.txt").read_text().splitlines()


RULE = "=" * 50


def test_the_newest_are_followed_until_the_last(tmp_path):
    """Three checkpoints come one after the other, the second is the best, the first is gone."""
    trainer = FakeTrainer(tmp_path, {2: 0.25, 4: 0.5, 7: 0.375})
    save(tmp_path, 2)
    trainer.after = lambda step: step < 7 and save(tmp_path, {2: 4, 4: 7}[step])
    results = evaluate(trainer, 7)
    assert trainer.evaluated == [2, 4, 7]
    assert results == {"global_step": 7, **METRICS, "masked_lm_accuracy": 0.375}
    told = ((2, 0.25, True), (4, 0.5, True), (7, 0.375, False))
    assert lines(tmp_path) == [line for each in told for line in (*block(tmp_path, *each), RULE)]
    assert best_step(tmp_path) == 4
    # Model cards read the results like this.
    assert eval_results.read(str(tmp_path), 4)["masked_lm_accuracy"] == 0.5


def test_a_checkpoint_is_waited_for(tmp_path, monkeypatch, caplog):
    trainer = FakeTrainer(tmp_path, {7: 0.375})
    looks = []

    def sleep(seconds):
        looks.append(seconds)
        if len(looks) == 5:
            save(tmp_path, 7)

    monkeypatch.setattr(evaluation.time, "sleep", sleep)
    with caplog.at_level("INFO", logger="absl"):
        evaluate(trainer, 7)
    assert len(looks) == 5
    assert trainer.evaluated == [7]
    assert caplog.text.count(f"waiting for the first checkpoint in {tmp_path}") == 1


def test_the_best_is_remembered_over_restarts(tmp_path):
    follow(tmp_path, {3: 0.5, 5: 0.25})
    assert best_step(tmp_path) == 3
    first, second = block(tmp_path, 3, 0.5, True), block(tmp_path, 5, 0.25, False)
    assert lines(tmp_path) == [*first, RULE, *second, RULE]
    follow(tmp_path, {7: 0.5})
    assert best_step(tmp_path) == 3
    follow(tmp_path, {11: 0.625})
    assert best_step(tmp_path) == 11
    # As after a kill during the copy of the best checkpoint, which loses it.
    (tmp_path / "model.ckpt-best.index").unlink()
    follow(tmp_path, {13: 0.25})
    assert best_step(tmp_path) == 13


@pytest.mark.parametrize("accuracy", [0.0, 0.625])
def test_a_checkpoint_that_training_deletes_meanwhile_stops_nothing(tmp_path, accuracy, caplog):
    """The evaluation takes longer than the training run keeps the checkpoint."""
    save(tmp_path, 2, keep_max=1)
    trainer = FakeTrainer(tmp_path, {2: accuracy, 7: 0.5})
    trainer.after = lambda step: step == 2 and save(tmp_path, 7, keep_max=1)
    evaluate(trainer, 7)
    assert trainer.evaluated == [2, 7]
    assert "model.ckpt-2 was the best checkpoint, but was deleted before it could" in caplog.text
    assert best_step(tmp_path) == 7


@pytest.mark.parametrize("when", ["before it is read", "while it is read"])
def test_a_checkpoint_that_is_gone_is_passed_over(tmp_path, monkeypatch, when):
    save(tmp_path, 2, keep_max=1)
    trainer = FakeTrainer(tmp_path, {7: 0.5})
    is_read = when.startswith("while")
    owner, name = (bundle, "read_index") if is_read else (trainer, "restore")
    real = getattr(owner, name)

    def deleted(prefix):
        found = real(prefix) if is_read else None
        if prefix.endswith("-2"):
            save(tmp_path, 7, keep_max=1)
        return found or real(prefix)

    monkeypatch.setattr(owner, name, deleted)
    evaluate(trainer, 7)
    assert trainer.evaluated == [7]


def test_a_damaged_record_of_the_best_replaces_nothing(tmp_path):
    follow(tmp_path, {3: 0.5})
    record = tmp_path / "eval_results.jsonl"
    content = record.read_text()
    record.write_text(content.replace('"step": 3', '"step": "3"'))
    with pytest.raises(ValueError, match="eval_results.jsonl:1: expected an object whose 'step'"):
        follow(tmp_path, {5: 0.25})
    assert best_step(tmp_path) == 3
    record.write_text(content)
    follow(tmp_path, {5: 0.25})
    assert best_step(tmp_path) == 3


def evaluate_saved(directory: pathlib.Path, accuracies: dict[int, float], after=None):
    trainer, best = FakeTrainer(directory, accuracies), []
    trainer.after = after or trainer.after
    given = trainer, lambda _: trainer.evaluate(None), lambda: best.append(trainer.step)
    assert evaluation.evaluate_saved(*given) == len(trainer.evaluated)
    return trainer.evaluated, best


def test_each_saved_checkpoint_is_evaluated_once_and_the_first_best_is_kept(tmp_path):
    save(tmp_path, 2, 4, 6)
    accuracies = {2: 0.5, 4: 0.75, 6: 0.75, 8: 0.625}
    assert evaluate_saved(tmp_path, accuracies) == ([2, 4, 6], [2, 4])
    assert (tmp_path / "best_trial.txt").read_text() == "6:4:0.75"
    assert best_step(tmp_path) == 4
    save(tmp_path, 8)
    assert evaluate_saved(tmp_path, accuracies) == ([8], [])
    assert evaluate_saved(tmp_path, accuracies) == ([], [])
    assert (tmp_path / "best_trial.txt").read_text() == "8:4:0.75"
    expected = []
    for step, best in ((2, 0.5), (4, 0.75), (6, 0.75), (8, 0.75)):
        expected += block(tmp_path, step, accuracies[step], step < 6) + [f"best = {best}", RULE]
    assert lines(tmp_path) == expected


def test_training_goes_on_from_the_newest_even_if_it_does_not_count(tmp_path):
    """As with a save on a signal: a stopped run ends with the same best checkpoint as another."""
    save(tmp_path, 2, 3, 4, 5)
    trainer = FakeTrainer(tmp_path, {2: 0.5, 4: 0.75})
    given = trainer, lambda _: trainer.evaluate(None), lambda: None
    count = evaluation.evaluate_saved(*given, lambda step: step % 2 == 0)
    assert (count, trainer.evaluated, trainer.step) == (2, [2, 4], 5)
    assert best_step(tmp_path) == 4


def test_workers_wait_for_what_the_chief_writes_and_evaluate_alike(tmp_path, monkeypatch):
    save(tmp_path, 2)
    seen = []

    def wait(devices):
        assert best_step(tmp_path) == 2
        seen.append((tmp_path / "best_trial.txt").read_text())

    with monkeypatch.context() as patch:
        patch.setattr(TensorFlowDevices, "wait_for_all", wait)
        evaluate_saved(tmp_path, {2: 0.5})
    assert seen == ["2:2:0.5"]
    # The chief has evaluated the first, but a worker doesn't see best_trial.txt yet.
    (tmp_path / "best_trial.txt").unlink()
    save(tmp_path, 4)
    trainer = FakeTrainer(tmp_path, {})
    trainer.devices.is_chief = False
    answers = iter([[2.0], [0.0]])
    monkeypatch.setattr(TensorFlowDevices, "mean_over_processes", lambda *_: next(answers))
    count = evaluation.evaluate_saved(trainer, lambda _: {"masked_lm_accuracy": 0.5}, lambda: None)
    assert (count, trainer.step) == (1, 4)
    assert not (tmp_path / "best_trial.txt").exists()


def test_a_killed_evaluation_goes_on_with_the_checkpoint_it_was_at(tmp_path):
    save(tmp_path, 2, 4)

    def kill(step: int) -> None:
        if step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate_saved(tmp_path, {2: 0.5, 4: 0.75}, kill)
    assert (tmp_path / "best_trial.txt").read_text() == "2:2:0.5"
    assert evaluate_saved(tmp_path, {4: 0.75}) == ([4], [4])


def test_a_kill_before_the_evaluation_is_recorded_changes_nothing(tmp_path):
    save(tmp_path, 2, 4)
    evaluate_saved(tmp_path, {2: 0.5, 4: 0.75})
    names = ("eval_results.jsonl", "eval_results.txt", "best_trial.txt")
    before = [(tmp_path / name).read_text() for name in names]
    first = before[0].splitlines(keepends=True)[0]
    (tmp_path / "eval_results.jsonl").write_text(first)
    assert evaluate_saved(tmp_path, {4: 0.75}) == ([4], [4])
    assert [(tmp_path / name).read_text() for name in names] == before
    # Results without a step, as of an evaluation alone, replace nothing.
    for _ in range(2):
        eval_results.append_text(str(tmp_path / "eval_results.txt"), ["f1 = 0.5"])
    text = (tmp_path / "eval_results.txt").read_text()
    assert text == before[1] + f"f1 = 0.5\n{'=' * 50}\n" * 2


def test_a_run_is_over_after_so_many_evaluations_without_a_better_one(tmp_path):
    assert not eval_results.is_over(str(tmp_path), 1, 2)
    accuracies = {2: 0.5, 4: 0.75, 6: 0.75, 7: 0.5, 8: 0.25}
    for step in accuracies:
        save(tmp_path, step)
        evaluate_saved(tmp_path, accuracies)
    # 6 and 8 count. 7 was saved on a signal: other runs would not have it.
    found = [eval_results.is_over(str(tmp_path), patience, 2) for patience in (1, 2, 3, None)]
    assert found == [True, True, False, False]
    save(tmp_path, 10)
    evaluate_saved(tmp_path, {10: 1.0})
    assert not eval_results.is_over(str(tmp_path), 1, 2)


def test_a_metric_is_compared_with_that_of_the_best_checkpoint(tmp_path):
    """4 beats 2 in b, 6 beats 4 in a; for a loss, the smallest is the best."""
    metrics = {2: {"a": 0.5, "b": 0.25}, 4: {"a": 0.25, "b": 0.75}, 6: {"a": 0.5, "b": 0.125}}
    metrics |= {7: {"c_loss": 2.5}, 8: {"c_loss": 0.5}, 9: {"c_loss": 0.75}}
    trainer, best = FakeTrainer(tmp_path, {}), []
    for step, trainer.task.key_metric in zip(metrics, [*"aba", *["c_loss"] * 3], strict=True):
        save(tmp_path, step)
        given = trainer, lambda _: metrics[trainer.step], lambda: best.append(trainer.step)
        evaluation.evaluate_saved(*given)
    assert best == [2, 4, 6, 7, 8] and best_step(tmp_path) == 8
    assert eval_results.Trial.read(str(tmp_path)) == eval_results.Trial(9, 8, 0.5)
    assert eval_results.read_last(tmp_path) == {"global_step": 9, "c_loss": 0.75}
    assert not eval_results.Trial().is_beaten(float("nan"), "c_loss")
