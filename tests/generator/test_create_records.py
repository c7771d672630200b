"""The records that the generator writes, against the text that they are made of, and its order.

Not tested here: files in a bucket, which are read in longer stretches.
"""

import collections
import itertools
import re

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.generator import sentencepiece as train_sentencepiece
from albert_tf.generator.settings import PieceTrainingSettings
from albert_tf.records import input_files, input_pipeline
from albert_tf.records.input_files import untuned
from albert_tf.records.spec import compact_spec
from albert_tf.text.tokenization import Tokenizer
from albert_tf.text.vocabulary import find_beside_records
from tests.generator.record_statistics import read_compact, read_records, restore_text
from tests.kit import tiny

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = PieceTrainingSettings(input_file="", character_coverage=1.0, input_sentence_size=1000)


def _contains(document, segment):
    size = len(segment)
    return any(document[i : i + size] == segment for i in range(len(document) - size + 1))


@pytest.mark.parametrize("single", ["random", "split"])
def test_examples_are_the_text_between_specials(run, tokenizer, short_text, caplog, single):
    """With "split", a single sentence makes a pair from one document."""
    caplog.set_level("INFO", logger="absl")
    path = run(input_file=short_text, max_predictions_per_seq=19, single_segment=single)
    records, lines = read_records([path]), caplog.text
    paragraphs = short_text.read_text().split("\n\n")
    documents = [[t for line in p.split("\n") for t in tokenizer.encode(line)] for p in paragraphs]
    ids = restore_text(records)
    lengths = records["input_mask"].sum(1)
    columns = np.arange(128)
    for row, length in enumerate(lengths):
        first_sep, second_sep = np.flatnonzero(ids[row, :length] == tokenizer.sep_id)
        assert ids[row, 0] == tokenizer.cls_id
        assert second_sep == length - 1
        assert not ids[row, length:].any()
        np.testing.assert_array_equal(records["input_mask"][row], columns < length)
        in_b = (columns > first_sep) & (columns < length)
        np.testing.assert_array_equal(records["segment_ids"][row], in_b)
        segments = ids[row, 1:first_sep].tolist(), ids[row, first_sep + 1 : second_sep].tolist()
        of_a, of_b = (
            {i for i, document in enumerate(documents) if _contains(document, segment)}
            for segment in segments
        )
        assert of_a and of_b and (of_a & of_b or single == "random")
    assert re.search(r"chunks of one sentence: [1-9][\d.]*%", lines)
    assert f"wrote {len(ids)} instances, {lengths.sum():,} tokens" in lines
    assert lengths.max() == 128
    assert records["next_sentence_labels"].shape == (len(ids), 1)
    assert records["masked_lm_ids"].shape == (len(ids), 19)


def test_token_boundaries_are_those_of_the_release(golden, tokenizer):
    records = read_records([golden / "pretrain_data" / "en_small_first50.tfrecord"])
    ids, is_token = restore_text(records), records["input_mask"] == 1
    special = np.isin(ids, (tokenizer.cls_id, tokenizer.sep_id))
    expected = is_token & (special | tokenizer.word_starts()[ids])
    np.testing.assert_array_equal(records["token_boundary"], expected)


def test_compact_records_are_the_unmasked_rows_of_the_others(run, tokenizer, short_text, tmp_path):
    masked = read_records([run(input_file=short_text)])
    path = tmp_path / "compact.tfrecord"
    run(input_file=short_text, masking="dynamic", dupe_factor=None, output_file=path)
    examples, row_format, rows = read_compact(path)
    ids = (getattr(tokenizer, f"{name}_id") for name in ("pad", "cls", "sep", "mask"))
    assert row_format == (128, tokenizer.vocab_size, *ids)
    np.testing.assert_array_equal(rows.input_ids, restore_text(masked))
    np.testing.assert_array_equal(rows.segment_ids, masked["segment_ids"])
    np.testing.assert_array_equal(rows.token_boundaries(), masked["token_boundary"])
    labels = examples["sentence_order_labels"]
    np.testing.assert_array_equal(labels, masked["next_sentence_labels"][:, 0])


def test_passes_differ_and_come_mixed(run, short_text):
    once = read_records([run(input_file=short_text, short_seq_prob=0)])
    thrice = read_records([run(input_file=short_text, short_seq_prob=0, dupe_factor=3)])
    assert 2.5 < len(thrice["input_ids"]) / len(once["input_ids"]) < 3.5
    assert len(np.unique(thrice["input_ids"], axis=0)) == len(thrice["input_ids"])
    is_of_first_pass = (thrice["input_ids"][:, None] == once["input_ids"]).all(-1).any(1)
    assert is_of_first_pass.sum() == len(once["input_ids"])
    assert np.diff(np.flatnonzero(is_of_first_pass)).max() > 1


def test_wordpiece_vocabulary_serves_without_a_sentencepiece_model(run, short_text, tmp_path):
    letters = "abcdefghijklmnopqrstuvwxyz"
    pieces = [*SPECIALS, *".,:;?", *letters]
    text = "\n".join([*pieces, *(f"##{letter}" for letter in letters)])
    vocabulary = tiny.write(tmp_path / "vocab.txt", text)
    given = {"input_file": short_text, "output_file": tmp_path / "r.tfrecord"}
    run(**given, num_output_shards=2)
    path = run(**given, spm_model_file=None, vocab_file=vocabulary, num_output_shards=None)
    # The vocabulary replaces that of the earlier records, and is found from each shard.
    assert [file.name for file in (tmp_path / "r.vocabulary").glob("*[lt]")] == ["vocab.txt"]
    found = find_beside_records([str(path), f"{path}-00001-of-00002"])
    assert found.tokenizer.digest == Tokenizer(vocab_file=vocabulary).digest
    run(input_file=short_text, output_file=tmp_path / "other.tfrecord")
    with pytest.raises(ValueError, match="the records are of different vocabularies"):
        find_beside_records([str(path), str(tmp_path / "other.tfrecord")])
    records = read_records([path])
    starts = records["token_boundary"] == 1
    assert (restore_text(records)[~starts & (records["input_mask"] == 1)] >= len(pieces)).all()
    assert (restore_text(records)[starts] < len(pieces)).all()


def test_words_of_other_scripts_stay_whole_on_request(run, tmp_path, caplog):
    caplog.set_level("INFO", logger="absl")
    words = ["".join(letters) for letters in itertools.product("\u03b1\u03b2\u03b3", repeat=4)]
    text = tiny.write(tmp_path / "text", "\n".join(f"{word} {word[::-1]}" for word in words))
    model = tiny.write(tmp_path / "model", train_sentencepiece.train([text], PIECES, 24, True))
    tokenizer = Tokenizer(spm_model_file=model)
    for letters, share in (("latin", r"[1-9][\d.]*%"), ("unicode", "0.000%")):
        caplog.clear()
        path = run(input_file=text, spm_model_file=model, word_starts=letters, max_seq_length=32)
        assert re.search(f"{share} counted as words only because", caplog.text)
        records = read_records([path])
        tokens = records["input_mask"] == 1
        pieces = tokenizer.convert_ids_to_tokens(restore_text(records)[tokens].tolist())
        starts = [letters == "latin" or piece[0] in "▁[" for piece in pieces]
        assert records["token_boundary"][tokens].tolist() == starts


YEARS, STEP = 120, 16


@pytest.fixture
def years_files(run, tmp_path):
    """Makes two files of examples from one document for each year."""
    pieces = "\n".join([*SPECIALS, *(f"y{year}" for year in range(YEARS))])
    documents = ("\n".join(f"y{year} " * 10 for _ in range(60)) for year in range(YEARS))
    given = {
        "input_file": tiny.write(tmp_path / "text.txt", "\n\n".join(documents)),
        "vocab_file": tiny.write(tmp_path / "vocab.txt", pieces),
        "spm_model_file": None,
        "num_output_shards": 2,
        "max_seq_length": 23,
        "dupe_factor": 2,
        "block_megabytes": 0.015,  # Some 20 blocks.
    }

    def make(name="years.tfrecord", **changes):
        run(output_file=tmp_path / name, **given, **changes)
        return input_files.find_files(f"{tmp_path / name}-*")

    return make


@pytest.fixture
def years(years_files, monkeypatch):
    # As small relative to these records as it usually is to those of a long text.
    monkeypatch.setattr(input_pipeline, "_SHUFFLE_BUFFER", 64)
    files = years_files(masking="dynamic", keep_order=True)
    indexes = input_files.index_records(files)
    order = (STEP, 1, 0, tf.distribute.InputContext())
    dataset = input_pipeline.training_dataset(files, indexes, compact_spec(), *order)
    count = sum(index.records for index in indexes)
    assert count > 5000
    steps = dataset.take(2 * count // STEP).map(lambda batch: batch["token_ids"][:, 0])
    found = np.concatenate(list(untuned(steps).as_numpy_iterator())) - len(SPECIALS)
    return found[:count], found[count:]


def test_any_part_of_an_epoch_is_of_all_years(years):
    """In the order of the text, the means of its first and last tenth would be far apart."""
    for epoch in years:
        tenth = len(epoch) // 10
        first, last = epoch[:tenth], epoch[-tenth:]
        assert abs(first.mean() - last.mean()) < 0.1 * YEARS
        for part in (first, last):
            quarters = np.bincount(part * 4 // YEARS, minlength=4) / tenth
            assert quarters.min() > 0.15 and quarters.max() < 0.35
    # Epochs visit the years in different orders.
    assert (years[0][:500] != years[1][:500]).mean() > 0.9


@pytest.mark.parametrize(
    "changes", [{}, {"max_examples_per_row": 3, "short_seq_prob": 1}], ids=["static", "packed"]
)
def test_any_hundred_records_of_a_file_are_of_its_whole_text(years_files, changes):
    """Readers that shuffle through a small buffer, as the release's does, need this."""
    in_order = _records_and_quarters(years_files("ordered", **changes, keep_order=True)[1])
    records = _records_and_quarters(years_files(**changes)[1])
    assert len(records) > 500 and sorted(records) == sorted(in_order)
    for begin in range(0, len(records) - 100, 50):
        counts = collections.Counter(quarter for _, quarter in records[begin : begin + 100])
        assert min(counts[quarter] for quarter in range(4)) >= 8  # 25 on average
    assert len({quarter for _, quarter in in_order[:100]}) == 1


def _records_and_quarters(path):
    """Returns a file's records, each with the quarter of the file's years that it is from."""
    records, years = [], []
    for record in untuned(tf.data.TFRecordDataset(path)).as_numpy_iterator():
        features = tf.train.Example.FromString(record).features.feature
        ids = np.array(features["input_ids"].int64_list.value) - len(SPECIALS)
        records.append(record)
        years.append(np.bincount(ids[ids >= 0]).argmax())  # Some are masked.
    quarters = (np.array(years) - min(years)) * 4 // (max(years) - min(years) + 1)
    return list(zip(records, quarters.tolist(), strict=True))
