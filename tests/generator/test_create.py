"""The generator from its command line: flags, files, warnings, memory."""

import operator
import tracemalloc
import types

import numpy as np
import pytest

from albert_tf.generator import create, workers
from albert_tf.generator.settings import GeneratorSettings
from tests.generator import runs
from tests.generator.record_statistics import read_records
from tests.kit import tiny
from tests.kit.tiny import parse

# Flag -> a value that is not the default, and the attributes of the plan that receive it.
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


def plan(**changes):
    given = {"input_file": runs.TEXT, "output_file": "a", "spm_model_file": runs.MODEL, **changes}
    made = create.make_plan(parse(GeneratorSettings, **given))[0]
    masks = made.settings.mask_settings(made.tokenizer)
    return types.SimpleNamespace(**made._asdict(), masks=masks)


def test_flags_are_passed_on():
    own = plan()
    received = {"masking": None, "output_file": ["b"], "block_megabytes": 2_000_000}
    received["num_output_shards"] = ["a-00000-of-00002", "a-00001-of-00002"]
    names = ["gs://x/a-00000-of-00002", "gs://x/a-00001-of-00002"]
    assert create.name_shards("gs://x/a", 2) == names
    for flag, (value, place) in PASSED_ON.items():
        get, expected = operator.attrgetter(place), received.get(flag, value)
        found = get(plan(**{flag: value}))
        assert str(found) != str(get(own)), flag
        if place == "cut_blocks.args":
            assert expected in found or repr(value) in str(found), flag
        else:
            assert found == expected, flag


@pytest.mark.parametrize(
    ("stored", "given", "lower"),
    [(None, None, True), (None, "false", False), ("false", None, False), ("false", "true", True)],
)
def test_case_is_as_given_or_else_as_stored_beside_the_vocabulary(tmp_path, stored, given, lower):
    model = tiny.write(tmp_path / "m", runs.MODEL.read_bytes())
    if stored:
        tiny.write(tmp_path / "tokenizer_config.json", f'{{"do_lower_case": {stored}}}')
    tokenizer = plan(spm_model_file=model, do_lower_case=given).tokenizer
    assert (tokenizer.encode("THE") == tokenizer.encode("the")) == lower


def test_same_flags_give_the_same_bytes_and_another_seed_others(run, short_text, monkeypatch):
    first = run(input_file=short_text).read_bytes()
    monkeypatch.setattr(workers, "_BATCH_SIZE", 7)
    assert run(input_file=short_text).read_bytes() == first
    assert run(input_file=short_text, random_seed=12346).read_bytes() != first


@pytest.mark.parametrize(
    ("length", "predictions", "most", "warns"),
    [
        *((128, 20, 1, False), (128, 19, 1, True), (512, 77, 1, False), (512, 76, 1, True)),
        *((512, 20, 16, True), (512, 0, 16, False)),
    ],
)
def test_fewer_predictions_than_asked_for_give_a_warning(caplog, length, predictions, most, warns):
    given = {"max_seq_length": length, "max_predictions_per_seq": predictions}
    plan(max_examples_per_row=most, **given)
    assert (f"max_predictions_per_seq={predictions} masks" in caplog.text) == warns
    assert ("let packing fill the rows" in caplog.text) == (warns and most > 1)
    if warns:
        shares = {19: "14.8 %", 76: "14.8 %", 20: "3.9 %"}
        assert f"masks {shares[predictions]} of a full example, not 15.0 %" in caplog.text
        assert f"{20 if length == 128 else 77} predictions" in caplog.text


@pytest.mark.parametrize(
    ("length", "prob", "slots"), [(512, 0.15, 77), (128, 0.15, 20), (128, 0.25, 32), (64, 0, 1)]
)
def test_no_limit_of_predictions_is_masked_lm_probs(run, short_text, caplog, length, prob, slots):
    given = {"max_seq_length": length, "masked_lm_prob": prob, "max_predictions_per_seq": 0}
    records = read_records([run(input_file=short_text, **given)])
    assert records["masked_lm_ids"].shape[1] == slots
    lengths, masked = records["input_mask"].sum(1), records["masked_lm_weights"].sum(1)
    np.testing.assert_array_equal(masked, np.clip(np.rint(prob * lengths), prob > 0, None))
    assert "WARNING" not in caplog.text


def test_failure_keeps_the_old_file(run, tmp_path):
    (tmp_path / "out.tfrecord").write_text("old")
    (tmp_path / "broken.txt").write_bytes(b"Some words.\nMore words.\n\n\xff\n")
    with pytest.raises(SystemExit, match="error: .*broken.txt, line 4 is not UTF-8"):
        run(input_file=tmp_path / "broken.txt")
    assert (tmp_path / "out.tfrecord").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("after_document", "after_sentence", "warns"),
    [("\n\n", "\n", False), ("\n\n", " ", True), ("\r\r", "\r", False)],
)
def test_text_mostly_cut_off_gives_one_warning(
    run, short_text, caplog, after_document, after_sentence, warns
):
    documents = short_text.read_text(encoding="utf-8").split("\n\n")
    joined = after_document.join(text.replace("\n", after_sentence) for text in documents)
    short_text.write_bytes(joined.encode())
    run(input_file=short_text, max_seq_length=64, block_megabytes=0.01)
    assert caplog.text.count("are longer than max_seq_length=64; give one sentence per") == warns


@pytest.mark.slow
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
        run(input_file=text, block_megabytes=0.0284)  # One copy a block.
        note_peak()
        tracemalloc.stop()
        # Until the first part is made, tables are loaded that take twenty times as much.
        return max(peaks[1:])

    peak_bytes(1)  # what is loaded on first use
    # The texts have 0.17 and 0.7 MB: if they were kept, the peak would grow by a third.
    assert peak_bytes(24) < 1.1 * peak_bytes(6)
