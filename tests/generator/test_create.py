"""The generator from its command line: files, reports, errors, memory."""

from __future__ import annotations

import collections
import itertools
import re
import sys
import tracemalloc

import numpy as np
import pytest
import tensorflow as tf
from absl import flags
from record_statistics import read_records, restore_text
from statistics_of_samples import assert_distribution

from albert_tf import scripts
from albert_tf.generator import create, extra, instances, workers
from albert_tf.generator import flags as generator_flags
from albert_tf.generator import sentencepiece as train_sentencepiece
from albert_tf.generator.formats import TextSettings
from albert_tf.records import input_files
from albert_tf.records.rows import Rows
from albert_tf.records.specs import RowFormat, compact_spec
from albert_tf.text.tokenization import Tokenizer

# Names and defaults: the release's, and then ours.
RELEASED_FLAGS = {
    "input_file": None,
    "output_file": None,
    "vocab_file": None,
    "spm_model_file": None,
    "input_file_mode": "r",
    "do_lower_case": True,
    "do_whole_word_mask": True,
    "do_permutation": False,
    "favor_shorter_ngram": True,
    "random_next_sentence": False,
    "max_seq_length": 512,
    "ngram": 3,
    "max_predictions_per_seq": 20,
    "random_seed": 12345,
    "dupe_factor": 40,
    "masked_lm_prob": 0.15,
    "short_seq_prob": 0.1,
}

OUR_FLAGS = {
    "masking": "static",
    "max_examples_per_row": 1,
    "num_output_shards": None,
    "num_processes": None,
    "block_megabytes": 4.0,
    "max_unknown_share": 0.1,
    "plots": False,
    "input_format": "lines",
    "text_field": "text",
    "language": "en",
    "single_segment": "random",
    "word_starts": "latin",
    "runner": "local",
    "beam_options": "",
}


@pytest.fixture
def run(golden, tmp_path):
    """Runs the script on the golden text, with changed flags."""

    def run_with(**changes):
        values = flags.FlagValues()
        generator_flags.define_flags(values)
        given = {
            "input_file": golden / "pretrain_data" / "text.txt",
            "output_file": tmp_path / "out.tfrecord",
            "spm_model_file": golden / "spm" / "en_small.model",
            "max_seq_length": 128,
            "dupe_factor": 1,
            "num_processes": 1,
        } | changes
        arguments = [f"--{name}={value}" for name, value in given.items() if value is not None]
        scripts.parse_in_one_line(values, ["create_pretraining_data.py", *arguments])
        create.main(values)
        return given["output_file"]

    return run_with


@pytest.fixture
def short_text(golden, tmp_path):
    """The first nine documents of the golden text."""
    path = tmp_path / "short.txt"
    whole = (golden / "pretrain_data" / "text.txt").read_text(encoding="utf-8")
    path.write_text("\n\n".join(whole.split("\n\n")[:9]), encoding="utf-8")
    return path


def test_flags_are_those_of_the_release_and_ours():
    values = flags.FlagValues()
    generator_flags.define_flags(values)
    assert {name: values[name].default for name in values} == RELEASED_FLAGS | OUR_FLAGS
    with pytest.raises(flags.IllegalFlagValueError, match="input_file"):
        values(["create_pretraining_data.py", "--output_file=x"])


def test_examples_are_the_text_between_specials(run, golden, short_text):
    records = read_records([run(input_file=short_text, max_predictions_per_seq=19)])
    tokenizer = Tokenizer(spm_model_file=golden / "spm" / "en_small.model")
    text = [
        token for line in short_text.read_text().split("\n") for token in tokenizer.encode(line)
    ]
    known = {tuple(text[i : i + 5]) for i in range(len(text) - 4)}
    ids = restore_text(records)
    lengths = records["input_mask"].sum(1)
    for row, length in enumerate(lengths):
        first_sep, second_sep = np.flatnonzero(ids[row, :length] == tokenizer.sep_id)
        assert ids[row, 0] == tokenizer.cls_id
        assert second_sep == length - 1
        assert not ids[row, length:].any()
        np.testing.assert_array_equal(np.flatnonzero(records["input_mask"][row]), np.arange(length))
        np.testing.assert_array_equal(
            np.flatnonzero(records["segment_ids"][row]), np.arange(first_sep + 1, length)
        )
        for segment in (ids[row, 1:first_sep], ids[row, first_sep + 1 : second_sep]):
            windows = {tuple(segment[i : i + 5].tolist()) for i in range(len(segment) - 4)}
            assert windows <= known
    assert lengths.max() == 128
    assert records["next_sentence_labels"].shape == (len(ids), 1)
    assert records["masked_lm_ids"].shape == (len(ids), 19)


def test_token_boundaries_are_those_of_the_release(golden):
    records = read_records([golden / "pretrain_data" / "en_small_first50.tfrecord"])
    tokenizer = Tokenizer(spm_model_file=golden / "spm" / "en_small.model")
    ids, is_token = restore_text(records), records["input_mask"] == 1
    special = np.isin(ids, (tokenizer.cls_id, tokenizer.sep_id))
    expected = is_token & (special | tokenizer.word_starts()[ids])
    np.testing.assert_array_equal(records["token_boundary"], expected)


def test_compact_records_are_the_unmasked_rows_of_the_others(run, golden, short_text, tmp_path):
    masked = read_records([run(input_file=short_text)])
    path = tmp_path / "compact.tfrecord"
    run(input_file=short_text, masking="dynamic", dupe_factor=None, output_file=path)
    serialized = list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())
    found = input_files.check_features([str(path)], compact_spec())
    row_format = RowFormat(*found.features["row_format"].expected)
    tokenizer = Tokenizer(spm_model_file=golden / "spm" / "en_small.model")
    assert row_format == (
        128,
        tokenizer.vocab_size,
        tokenizer.pad_id,
        tokenizer.cls_id,
        tokenizer.sep_id,
        tokenizer.mask_id,
    )
    examples = compact_spec().parse(tf.constant(serialized))
    parts = [examples[name].numpy() for name in ("token_ids", "segment_lengths", "word_starts")]
    rows = Rows.lay_out(*parts, row_format)
    np.testing.assert_array_equal(rows.input_ids, restore_text(masked))
    np.testing.assert_array_equal(rows.segment_ids, masked["segment_ids"])
    np.testing.assert_array_equal(rows.token_boundaries(), masked["token_boundary"])
    labels = examples["sentence_order_labels"]
    np.testing.assert_array_equal(labels, masked["next_sentence_labels"][:, 0])


def test_a_flag_of_masks_is_refused_where_none_are_drawn(run, tmp_path):
    with pytest.raises(SystemExit, match="^error: --ngram says how to mask, and with --masking=dy"):
        run(masking="dynamic", ngram=2)
    assert not list(tmp_path.iterdir())
    with pytest.raises(SystemExit, match="give run_pretraining.py --masked_lm_budget$"):
        run(masking="dynamic", masked_lm_prob=0.2)


def test_same_flags_give_the_same_bytes_and_another_seed_others(run, short_text, monkeypatch):
    first = run(input_file=short_text).read_bytes()
    monkeypatch.setattr(workers, "_BATCH_SIZE", 7)
    assert run(input_file=short_text).read_bytes() == first
    assert run(input_file=short_text, random_seed=12346).read_bytes() != first


def test_passes_differ_and_come_mixed(run, short_text):
    once = read_records([run(input_file=short_text, short_seq_prob=0)])
    thrice = read_records([run(input_file=short_text, short_seq_prob=0, dupe_factor=3)])
    assert 2.5 < len(thrice["input_ids"]) / len(once["input_ids"]) < 3.5
    assert len(np.unique(thrice["input_ids"], axis=0)) == len(thrice["input_ids"])
    is_of_first_pass = (thrice["input_ids"][:, None] == once["input_ids"]).all(-1).any(1)
    assert is_of_first_pass.sum() == len(once["input_ids"])
    assert np.diff(np.flatnonzero(is_of_first_pass)).max() > 1


def test_permutation_doubles_the_label_slots(run, short_text):
    records = read_records([run(input_file=short_text, do_permutation=True)])
    assert records["masked_lm_positions"].shape[1] == 40
    budget = np.clip(np.rint(0.15 * records["input_mask"].sum(1)), 1, 20)
    np.testing.assert_array_equal(records["masked_lm_weights"].sum(1), 2 * budget)


def test_packed_rows_hold_the_examples_that_are_otherwise_alone(run, short_text, tmp_path):
    given = {"input_file": short_text, "short_seq_prob": 1}
    alone = read_records([run(**given)])
    packed = read_records([run(**given, max_examples_per_row=5)])
    assert run(**given, max_examples_per_row=1, output_file=tmp_path / "1").read_bytes() == (
        run(**given, output_file=tmp_path / "none").read_bytes()
    )
    assert packed["input_mask"].sum() == alone["input_mask"].sum()
    assert packed["masked_lm_weights"].sum() == alone["masked_lm_weights"].sum()
    assert packed["next_sentence_labels"].shape == packed["cls_positions"].shape
    assert packed["cls_positions"].shape == (len(packed["input_ids"]), 5)
    assert len(packed["input_ids"]) < 0.75 * len(alone["input_ids"])

    expected = collections.Counter(
        (*ids[mask == 1].tolist(), label)
        for ids, mask, label in zip(
            restore_text(alone),
            alone["input_mask"],
            alone["next_sentence_labels"][:, 0],
            strict=True,
        )
    )
    found = collections.Counter()
    for row, ids in enumerate(restore_text(packed)):
        slots = np.flatnonzero(packed["next_sentence_weights"][row])
        starts = [*packed["cls_positions"][row, slots], packed["input_mask"][row].sum()]
        for slot, (start, end) in enumerate(itertools.pairwise(starts)):
            label = packed["next_sentence_labels"][row, slot]
            found[(*ids[start:end].tolist(), label)] += 1
    assert found == expected


def test_wordpiece_vocabulary_serves_where_there_is_no_sentencepiece_model(
    run, short_text, tmp_path
):
    vocabulary = tmp_path / "vocab.txt"
    letters = "abcdefghijklmnopqrstuvwxyz"
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *".,:;?", *letters]
    vocabulary.write_text("\n".join([*pieces, *(f"##{letter}" for letter in letters)]))
    path = run(input_file=short_text, spm_model_file=None, vocab_file=vocabulary)
    records = read_records([path])
    starts = records["token_boundary"] == 1
    assert (restore_text(records)[~starts & (records["input_mask"] == 1)] >= len(pieces)).all()
    assert (restore_text(records)[starts] < len(pieces)).all()


def test_report_counts_what_was_done(run, short_text, caplog):
    caplog.set_level("INFO", logger="absl")
    records = read_records([run(input_file=short_text, max_predictions_per_seq=18)])
    report = caplog.text
    assert "read 9 documents" in report
    tokens = int(records["input_mask"].sum())
    assert f"wrote {len(records['input_ids'])} instances, {tokens:,} tokens" in report
    share = records["next_sentence_labels"].mean()
    assert f"swapped, or B from a random document): {share:.2%}" in report
    assert re.search(r"[\d.]+ seconds, [\d,]+ output tokens/s", report)
    assert "masks 14.1 % of a full example, not 15.0 %: 20 predictions" in report


@pytest.mark.parametrize(
    ("length", "predictions", "warns"),
    [(128, 20, False), (128, 19, True), (512, 77, False), (512, 76, True), (512, 20, True)],
)
def test_fewer_predictions_than_masked_lm_prob_asks_for_give_a_warning(
    run, short_text, caplog, length, predictions, warns
):
    run(input_file=short_text, max_seq_length=length, max_predictions_per_seq=predictions)
    assert (f"max_predictions_per_seq={predictions} masks" in caplog.text) == warns


@pytest.mark.parametrize(
    ("length", "prob", "slots"), [(512, 0.15, 77), (128, 0.15, 20), (128, 0.25, 32), (64, 0, 1)]
)
def test_no_limit_of_predictions_is_what_masked_lm_prob_asks_for(
    run, short_text, caplog, length, prob, slots
):
    path = run(
        input_file=short_text,
        max_seq_length=length,
        masked_lm_prob=prob,
        max_predictions_per_seq=0,
    )
    records = read_records([path])
    assert records["masked_lm_ids"].shape[1] == slots
    lengths, masked = records["input_mask"].sum(1), records["masked_lm_weights"].sum(1)
    np.testing.assert_array_equal(masked, np.clip(np.rint(prob * lengths), prob > 0, None))
    assert "WARNING" not in caplog.text


def test_splitting_single_sentences_makes_pairs_of_one_document(run, golden, short_text, caplog):
    caplog.set_level("INFO", logger="absl")
    whole = read_records([run(dupe_factor=3, single_segment="split")])
    share = np.bincount(whole["next_sentence_labels"][:, 0])
    assert_distribution(share, [1, 1])
    assert re.search(r"chunks of one sentence: [1-9][\d.]*%", caplog.text)

    tokenizer = Tokenizer(spm_model_file=golden / "spm" / "en_small.model")
    paragraphs = short_text.read_text().split("\n\n")
    documents = [[t for line in p.split("\n") for t in tokenizer.encode(line)] for p in paragraphs]
    records = read_records([run(input_file=short_text, single_segment="split")])
    for ids, mask in zip(restore_text(records), records["input_mask"], strict=True):
        first_sep, second_sep = np.flatnonzero(ids[: mask.sum()] == tokenizer.sep_id)
        a, b = ids[1:first_sep].tolist(), ids[first_sep + 1 : second_sep].tolist()
        assert any(_contains(document, a) and _contains(document, b) for document in documents)


def _contains(document, segment):
    size = len(segment)
    return any(document[i : i + size] == segment for i in range(len(document) - size + 1))


def test_words_of_other_scripts_stay_whole_on_request(run, tmp_path, caplog):
    caplog.set_level("INFO", logger="absl")
    words = ["".join(letters) for letters in itertools.product("\u03b1\u03b2\u03b3", repeat=4)]
    text, model = tmp_path / "greek.txt", tmp_path / "greek.model"
    text.write_text("\n".join(f"{word} {word[::-1]}" for word in words), encoding="utf-8")
    model.write_bytes(train_sentencepiece.train([str(text)], TextSettings(), 24, 1.0, True, 1000))
    tokenizer = Tokenizer(spm_model_file=model)
    for letters, share in (("latin", r"[1-9][\d.]*%"), ("unicode", "0.000%")):
        caplog.clear()
        path = run(input_file=text, spm_model_file=model, word_starts=letters, max_seq_length=32)
        assert re.search(f"{share} words only as non-Latin letters", caplog.text)
        records = read_records([path])
        tokens = records["input_mask"] == 1
        pieces = tokenizer.convert_ids_to_tokens(restore_text(records)[tokens].tolist())
        starts = [letters == "latin" or piece[0] in "▁[" for piece in pieces]
        assert records["token_boundary"][tokens].tolist() == starts


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_file": "gone/*.txt"}, "error: input file gone/\\*.txt does not exist"),
        ({"input_file": "s3://b/x"}, "error: File system scheme 's3' not implemented"),
        (
            {"spm_model_file": None},
            "error: a vocabulary is needed: set --spm_model_file or --vocab",
        ),
        ({"spm_model_file": "gone.model"}, "error: vocabulary file gone.model does not exist"),
        ({"output_file": ""}, "error: --output_file: expected names of files, got ''"),
        ({"output_file": "a,b,a"}, "error: --output_file: a file is named twice"),
        ({"dupe_factor": 0}, "error: .*--dupe_factor=0: 0 is not a positive integer"),
        ({"max_examples_per_row": 0}, "error: .*--max_examples_per_row=0: 0 is not a positive"),
        (
            {"max_examples_per_row": 2, "masking": "dynamic"},
            "error: --max_examples_per_row packs examples with their masks, and --masking=dynamic",
        ),
        ({"max_seq_length": 4}, "error: --max_seq_length must be at least 5"),
        ({"num_processes": 0}, "error: .*--num_processes=0: 0 is not a positive integer"),
        (
            {"block_megabytes": 0},
            r"error: .*--block_megabytes=0: 0.0 is not a number in \(0, inf\)",
        ),
        ({"block_megabytes": "nan"}, "error: .*--block_megabytes=nan: nan is not a number"),
        ({"block_megabytes": "inf"}, "error: .*--block_megabytes=inf: inf is not a number"),
        ({"max_unknown_share": "nan"}, "error: .*--max_unknown_share=nan: nan is not a number"),
        ({"max_unknown_share": "inf"}, "error: .*--max_unknown_share=inf: inf is not a number"),
        (
            {"short_seq_prob": "nan"},
            r"error: .*--short_seq_prob=nan: nan is not a number in \[0, 1\]",
        ),
        (
            {"masked_lm_prob": "nan", "max_predictions_per_seq": 0},
            r"error: .*--masked_lm_prob=nan: nan is not a number in \[0, 1\]",
        ),
        ({"beam_options": "--runner=FlinkRunner"}, "error: --beam_options is for --runner=beam"),
        ({"num_output_shards": 0}, "error: .*--num_output_shards=0: 0 is not a positive inte"),
        (
            {"num_output_shards": 2, "output_file": "a,b"},
            "error: --num_output_shards=2 and --output_file with 2 names: give one name",
        ),
        ({"ngram": 0}, "error: .*--ngram=0: 0 is not a positive integer"),
        ({"input_file_mode": "x"}, "error: --input_file_mode must be 'r' or 'rb', got 'x'"),
        ({"input_format": "x"}, "error: --input_format must be one of lines, .*, got 'x'"),
        ({"word_starts": "x"}, r"error: .*--word_starts=x: .* one of <latin\|unicode>"),
        ({"single_segment": "x"}, r"error: .*--single_segment=x: .* one of <random\|split>"),
        (
            {"max_predictions_per_seq": -1},
            "error: .*--max_predictions_per_seq=-1: -1 is not a non-n",
        ),
    ],
)
def test_what_a_user_can_mend_is_one_line(run, changes, message):
    with pytest.raises(SystemExit, match=message) as stop:
        run(**changes)
    assert "\n" not in str(stop.value)


def test_output_that_cannot_be_written_is_refused_before_any_work(run, tmp_path, monkeypatch):
    monkeypatch.setattr(instances, "draw_instances", None)
    (tmp_path / "file").write_text("x")
    with pytest.raises(SystemExit, match="error: --output_file: can't write .*file/out.tfrecord"):
        run(output_file=tmp_path / "file" / "out.tfrecord")
    with pytest.raises(SystemExit, match="error: --output_file: expected names of files, got"):
        run(output_file=tmp_path)


def test_beam_that_is_not_installed_is_refused_before_any_work(run, monkeypatch):
    monkeypatch.delitem(sys.modules, "albert_tf.generator.extra.beam", raising=False)
    monkeypatch.delattr(extra, "beam", raising=False)
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    message = "error: --runner=beam needs the package 'apache_beam', which is not installed: pip"
    with pytest.raises(SystemExit, match=message):
        run(runner="beam", input_file="gone.txt")


def test_input_file_is_not_overwritten(run, short_text):
    before = short_text.read_bytes()
    with pytest.raises(SystemExit, match="error: --output_file: .*short.txt is an input file too"):
        run(input_file=short_text, output_file=short_text)
    assert short_text.read_bytes() == before


def test_failure_leaves_no_half_file_and_keeps_the_old_one(run, tmp_path):
    old = tmp_path / "out.tfrecord"
    old.write_text("old")
    empty = tmp_path / "empty.txt"
    empty.write_text("\n \n")
    with pytest.raises(SystemExit, match="error: --input_file: there is no text in it"):
        run(input_file=empty)
    broken = tmp_path / "broken.txt"
    broken.write_bytes(b"Some words.\nMore words.\n\n\xff\n")
    with pytest.raises(SystemExit, match="error: .*broken.txt, line 4 is not UTF-8"):
        run(input_file=broken)
    assert old.read_text() == "old"
    assert [path.name for path in tmp_path.glob("out*")] == ["out.tfrecord"]


def test_memory_does_not_grow_with_the_text(run, short_text, tmp_path):
    def peak_bytes(copies):
        text = tmp_path / f"{copies}.txt"
        text.write_text("\n\n".join([short_text.read_text()] * copies))
        tracemalloc.start()
        run(input_file=text, block_megabytes=0.1)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    peak_bytes(1)  # what is loaded on first use
    # 0.7 and 2.8 MB of text: kept as it is, that would double the peak.
    assert peak_bytes(96) < 1.1 * peak_bytes(24)
