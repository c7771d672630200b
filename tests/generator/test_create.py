"""The generator from its command line: files, reports, errors, memory."""

import operator
import re
import sys
import tracemalloc
import types

import numpy as np
import pytest
from record_statistics import read_records

from albert_tf import generator
from albert_tf.generator import create, examples, workers
from albert_tf.generator.settings import GeneratorSettings
from tests.tiny import parse

# Flag -> a value that is no default -> the names of what receives it in the plan, or its masks.
PASSED_ON = {
    "masked_lm_prob": (0.2, "masks.masked_lm_prob"),
    "mask_replace_prob": (0.7, "masks.mask_replace_prob"),
    "random_replace_prob": (0.2, "masks.random_replace_prob"),
    "max_predictions_per_seq": (9, "masks.max_predictions_per_seq"),
    "ngram": (2, "masks.ngram"),
    "favor_shorter_ngram": (False, "masks.favor_shorter_ngram"),
    "do_whole_word_mask": (False, "masks.do_whole_word_mask"),
    "do_permutation": (True, "masks.do_permutation"),
    "masking": ("dynamic", "masks"),
    "do_lower_case": (False, "tokenizer.do_lower_case"),
    "keep_accents": (True, "tokenizer.keep_accents"),
    "output_file": ("b", "output_files"),
    "num_output_shards": (2, "output_files"),
    "block_megabytes": (2.0, "cut_blocks.args"),
    "input_format": ("paragraphs", "cut_blocks.args"),
    "input_file_mode": ("rb", "cut_blocks.args"),
    "text_field": ("body", "cut_blocks.args"),
    "language": ("de", "cut_blocks.args"),
}


def test_flags_are_passed_on(golden):
    def plan(**changes):
        given = {
            "input_file": golden / "pretrain_data" / "text.txt",
            "output_file": "a",
            "spm_model_file": golden / "spm" / "en_small.model",
            **changes,
        }
        made = create.make_plan(parse(GeneratorSettings, **given))[0]
        masks = made.settings.mask_settings(made.tokenizer)
        return types.SimpleNamespace(**made._asdict(), masks=masks)

    own = plan()
    for flag, (value, place) in PASSED_ON.items():
        found = operator.attrgetter(place)(plan(**{flag: value}))
        expected = {
            "masking": None,
            "output_file": ["b"],
            "num_output_shards": ["a-00000-of-00002", "a-00001-of-00002"],
        }.get(flag, value)
        assert str(found) != str(operator.attrgetter(place)(own)), flag
        if place == "cut_blocks.args":
            expected = 2_000_000 if flag == "block_megabytes" else value
            assert expected in found or repr(value) in str(found), flag
        else:
            assert found == expected, flag


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"single_segment": "split", "random_next_sentence": True},
            "`single_segment=split` applies only to sentence order: leave out",
        ),
        ({"masking": "dynamic", "max_examples_per_row": 2}, "`max_examples_per_row` packs masked"),
    ],
)
def test_settings_that_contradict_themselves(given, message):
    with pytest.raises(ValueError, match=f"^{message}") as caught:
        GeneratorSettings.of(input_file="a", output_file="b", **given)
    assert "\n" not in str(caught.value)


def test_shard_names():
    assert create.name_shards("a,b", None) == ["a", "b"]
    with pytest.raises(ValueError, match="~/a begins with ~"):
        create.name_shards("b,~/a", None)
    assert create.name_shards("gs://x/a", 2) == [
        "gs://x/a-00000-of-00002",
        "gs://x/a-00001-of-00002",
    ]


def test_same_flags_give_the_same_bytes_and_another_seed_others(run, short_text, monkeypatch):
    first = run(input_file=short_text).read_bytes()
    monkeypatch.setattr(workers, "_BATCH_SIZE", 7)
    assert run(input_file=short_text).read_bytes() == first
    assert run(input_file=short_text, random_seed=12346).read_bytes() != first


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
    ("length", "predictions", "most", "warns"),
    [
        *((128, 20, 1, False), (128, 19, 1, True), (512, 77, 1, False), (512, 76, 1, True)),
        *((512, 20, 16, True), (512, 0, 16, False)),
    ],
)
def test_fewer_predictions_than_masked_lm_prob_asks_for_give_a_warning(
    run, short_text, caplog, length, predictions, most, warns
):
    given = {"max_seq_length": length, "max_predictions_per_seq": predictions}
    run(input_file=short_text, max_examples_per_row=most, **given)
    assert (f"max_predictions_per_seq={predictions} masks" in caplog.text) == warns
    packing = "77 predictions would do that, and let packing fill the rows: the examples of a row"
    assert (packing in caplog.text) == (warns and most > 1)


@pytest.mark.parametrize(
    ("length", "prob", "slots"), [(512, 0.15, 77), (128, 0.15, 20), (128, 0.25, 32), (64, 0, 1)]
)
def test_no_limit_of_predictions_is_what_masked_lm_prob_asks_for(
    run, short_text, caplog, length, prob, slots
):
    path = run(
        input_file=short_text, max_seq_length=length, masked_lm_prob=prob, max_predictions_per_seq=0
    )
    records = read_records([path])
    assert records["masked_lm_ids"].shape[1] == slots
    lengths, masked = records["input_mask"].sum(1), records["masked_lm_weights"].sum(1)
    np.testing.assert_array_equal(masked, np.clip(np.rint(prob * lengths), prob > 0, None))
    assert "WARNING" not in caplog.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_file": "gone/*.txt"}, "error: input file gone/\\*.txt does not exist"),
        ({"input_file": "s3://b/x"}, "error: File system scheme 's3' not implemented"),
        ({"spm_model_file": None}, "error: no vocabulary: set --spm_model_file or --vocab"),
        ({"spm_model_file": "gone.model"}, "error: vocabulary file gone.model does not exist"),
        ({"output_file": ""}, "error: --output_file: expected file names, got ''"),
        ({"output_file": "a,b,a"}, "error: --output_file: a file is named twice"),
        ({"dupe_factor": 0}, "error: .*--dupe_factor=0: 0 is not a positive integer"),
        ({"block_megabytes": 0}, r"error: .*--block_megabytes=0: 0.0 is not a number in \(0,"),
        # Of more words the masks would reach the first 2**16 only.
        ({"max_seq_length": 65537}, "error: .*--max_seq_length=65537: .* maximum, 65,536"),
        ({"block_megabytes": "nan"}, "error: .*--block_megabytes=nan: nan is not a number"),
        (
            {"masked_lm_prob": "nan", "max_predictions_per_seq": 0},
            r"error: .*--masked_lm_prob=nan: nan is not a number in \[0, 1\]",
        ),
        ({"num_output_shards": 2, "output_file": "a,b"}, "error: --num_output_shards=2 and"),
        ({"word_starts": "x"}, r"error: .*--word_starts=x: .* one of <latin\|unicode>"),
        ({"input_file_mode": "w"}, r"error: .*--input_file_mode=w: .* one of <r\|rb>"),
        ({"max_seq_length": 4}, "error: .*--max_seq_length=4: 4 is not integer >= 5"),
    ],
)
def test_what_a_user_can_mend_is_one_line(run, changes, message):
    with pytest.raises(SystemExit, match=message) as stop:
        run(**changes)
    assert "\n" not in str(stop.value)


def test_output_that_cannot_be_written_is_refused_before_any_work(run, tmp_path, monkeypatch):
    monkeypatch.setattr(examples, "draw_instances", None)
    (tmp_path / "file").write_text("x")
    with pytest.raises(SystemExit, match="error: --output_file: can't write .*file/out.tfrecord"):
        run(output_file=tmp_path / "file" / "out.tfrecord")
    with pytest.raises(SystemExit, match="error: --output_file: expected file names, got"):
        run(output_file=tmp_path)


def test_beam_that_is_not_installed_is_refused_before_any_work(run, monkeypatch):
    monkeypatch.delitem(sys.modules, "albert_tf.generator.beam", raising=False)
    monkeypatch.delattr(generator, "beam", raising=False)
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    message = "error: --runner=beam needs the package 'apache_beam', which is not installed: pip"
    with pytest.raises(SystemExit, match=message):
        run(runner="beam", input_file="gone.txt", num_processes=None)


@pytest.mark.parametrize("output", ["{}/short.txt", "short.txt", "./short.txt", "link.txt"])
def test_input_file_is_not_overwritten(run, short_text, tmp_path, monkeypatch, output):
    before = short_text.read_bytes()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.txt").symlink_to("short.txt")
    message = "error: --output_file: .*(short|link).txt is also an input file"
    with pytest.raises(SystemExit, match=message):
        run(input_file=short_text, output_file=output.format(tmp_path))
    assert short_text.read_bytes() == before


def test_failure_leaves_no_half_file_and_keeps_the_old_one(run, tmp_path):
    old = tmp_path / "out.tfrecord"
    old.write_text("old")
    broken = tmp_path / "broken.txt"
    broken.write_bytes(b"Some words.\nMore words.\n\n\xff\n")
    with pytest.raises(SystemExit, match="error: .*broken.txt, line 4 is not UTF-8"):
        run(input_file=broken)
    assert old.read_text() == "old"
    assert [path.name for path in tmp_path.glob("out*")] == ["out.tfrecord"]


@pytest.mark.parametrize(
    ("after_document", "after_sentence", "warns"),
    [("\n\n", "\n", False), ("\n\n", " ", True), ("\r\r", "\r", True)],
)
def test_text_that_is_mostly_cut_off_gives_one_warning(
    run, short_text, caplog, after_document, after_sentence, warns
):
    documents = short_text.read_text(encoding="utf-8").split("\n\n")
    joined = after_document.join(text.replace("\n", after_sentence) for text in documents)
    short_text.write_bytes(joined.encode())
    run(input_file=short_text, max_seq_length=64, block_megabytes=0.01)
    assert caplog.text.count("than written") == warns
    assert caplog.text.count("are longer than max_seq_length=64; give one sentence per") == warns


def test_memory_does_not_grow_with_the_text(run, short_text, tmp_path, monkeypatch):
    peaks = []

    def note_peak():
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.reset_peak()

    def make_and_note(*job, make_part=workers.make_part):
        part = make_part(*job)
        note_peak()
        return part

    monkeypatch.setattr(workers, "make_part", make_and_note)

    def peak_bytes(copies):
        text = tmp_path / f"{copies}.txt"
        text.write_text("\n\n".join([short_text.read_text()] * copies))
        peaks.clear()
        tracemalloc.start()
        run(input_file=text, block_megabytes=0.1)
        note_peak()
        tracemalloc.stop()
        # Until the first part is made, tables are loaded that take twenty times as much.
        return max(peaks[1:])

    peak_bytes(1)  # what is loaded on first use
    # 0.35 and 1.4 MB of text: kept as it is, that would be a third more.
    assert peak_bytes(48) < 1.1 * peak_bytes(12)
