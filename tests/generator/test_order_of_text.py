"""What a run trains on early and late, when the text is in the order of history.

Can't see: files in a bucket, of which longer stretches are read.
"""

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.records import input_files, input_pipeline
from albert_tf.records.input_files import untuned
from albert_tf.records.spec import compact_spec

YEARS = 120
STEP = 16


@pytest.fixture
def years(run, tmp_path, monkeypatch):
    """Returns the years of two epochs of examples, made from one document for each year."""
    # As small beside the records as it is beside those of a long text.
    monkeypatch.setattr(input_pipeline, "_SHUFFLE_BUFFER", 64)
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join([*specials, *(f"y{year}" for year in range(YEARS))]))
    documents = ("\n".join(f"y{year} " * 10 for _ in range(60)) for year in range(YEARS))
    (tmp_path / "text.txt").write_text("\n\n".join(documents))
    output = tmp_path / "years.tfrecord"
    run(
        input_file=tmp_path / "text.txt",
        output_file=output,
        num_output_shards=2,
        spm_model_file=None,
        vocab_file=vocabulary,
        masking="dynamic",
        max_seq_length=23,
        dupe_factor=2,
        # Some 20 blocks.
        block_megabytes=0.015,
    )
    files = input_files.find_files(f"{output}-*")
    indexes = input_files.index_records(files)
    dataset = input_pipeline.training_dataset(
        files, indexes, compact_spec(), STEP, 1, 0, tf.distribute.InputContext()
    )
    count = sum(index.records for index in indexes)
    assert count > 5000
    steps = dataset.take(2 * count // STEP).map(lambda batch: batch["token_ids"][:, 0])
    found = np.concatenate(list(untuned(steps).as_numpy_iterator())) - len(specials)
    return found[:count], found[count:]


def test_any_part_of_an_epoch_is_of_all_years(years):
    """In the order of the text the means of its ends would be some 100 years apart."""
    for epoch in years:
        tenth = len(epoch) // 10
        first, last = epoch[:tenth], epoch[-tenth:]
        assert abs(first.mean() - last.mean()) < 0.1 * YEARS
        for part in (first, last):
            quarters = np.bincount(part * 4 // YEARS, minlength=4) / tenth
            assert quarters.min() > 0.15 and quarters.max() < 0.35
    # Epochs visit the years in different orders.
    assert (years[0][:500] != years[1][:500]).mean() > 0.9
