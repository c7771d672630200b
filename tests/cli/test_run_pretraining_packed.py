"""run_pretraining.py on packed rows: the run is the same as with one example per row.

A batch is all examples, so that both runs see the same ones at every step. On several replicas:
tests/training/test_replica_combinations.py.
"""

import numpy as np
import pytest

from albert_tf.storage import eval_results
from tests.kit import pretraining_runs as runs

COUNT, WIDTH, PREDICTIONS, SLOTS = 16, 31, 11, 3


def short_examples() -> list[dict[str, np.ndarray]]:
    """Examples of 8 to 17 tokens, in rows that have room for one to three of them."""
    widths = {17: WIDTH, runs.PREDICTIONS: PREDICTIONS}
    examples = runs.examples(COUNT, length=17)
    for example in examples:
        rows = {name: value for name, value in example.items() if value.ndim}
        example |= {name: np.pad(x, (0, widths[x.size] - x.size)) for name, x in rows.items()}
    return examples


@pytest.mark.slow
def test_packing_changes_nothing_but_the_number_of_rows(tmp_path):
    """Five updates, each accumulated over two parts if packed, and an evaluation."""
    alone = short_examples()
    packed = runs.packed(alone, SLOTS)
    assert sorted({row["sentence_order_weights"].sum() for row in packed}) == [1, 2, 3]
    runs.write_config(tmp_path / "albert_config.json")
    runs.write_records(tmp_path / "alone.tfrecord", alone)
    runs.write_records(tmp_path / "packed.tfrecord", packed)

    def command(name: str, **changes) -> list[str]:
        own = {"input_file": tmp_path / f"{name}.tfrecord", "output_dir": tmp_path / name}
        own |= {"max_seq_length": WIDTH, "max_predictions_per_seq": PREDICTIONS}
        return runs.command(tmp_path, num_train_steps=5, do_eval=True, **own, **changes)

    flags = {"max_examples_per_row": SLOTS, "gradient_accumulation_steps": 2}
    # The evaluation pads its last batch of 6 with 4 rows.
    runs.main(command("packed", train_batch_size=len(packed), eval_batch_size=6, **flags))
    runs.main(command("alone", train_batch_size=COUNT))

    stats = runs.assert_same_run(tmp_path / "packed", tmp_path / "alone")
    assert list(stats) == [1, 2, 3, 4, 5] and stats[5]["loss"] < stats[1]["loss"] - 0.1
    results = eval_results.read_last(tmp_path / "packed")
    assert (results["sentence_order_accuracy"] * COUNT) % 1 == pytest.approx(0, abs=1e-5)
