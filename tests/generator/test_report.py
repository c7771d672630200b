"""Reports: what they count against the records alone, how they merge and save.

Not tested here: which n-grams were drawn, only the runs that they leave; whether a plot is legible.
"""

import collections
import json
import os
import pathlib

import numpy as np
import pytest

from albert_tf.generator import examples
from albert_tf.generator.report import Report, report_path
from albert_tf.generator.report_plots import write_plots
from albert_tf.generator.settings import GeneratorSettings
from tests.generator import runs
from tests.generator.record_statistics import count_words, read_records

CLS_ID, SEP_ID = 2, 3


@pytest.fixture
def run(run, tmp_path):
    """Runs the script on the golden text into two shards; returns them, and the report."""

    def run_with(**changes):
        outputs = [tmp_path / "a.tfrecord", tmp_path / "b.tfrecord"]
        given = {"max_seq_length": 131, "max_predictions_per_seq": 17, "dupe_factor": 2}
        run(output_file=",".join(map(str, outputs)), **{**given, **changes})
        return outputs, json.loads((tmp_path / "a.report.json").read_text())

    return run_with


def test_json_counts_what_is_in_the_text_and_the_records(run, tokenizer):
    outputs, value = run()
    records = read_records(outputs)
    ids = [tokenizer.encode(line) for line in runs.TEXT.read_text().split("\n")]
    lengths, masked = records["input_mask"].sum(1), records["masked_lm_weights"].sum()
    expected = {
        "schema_version": 3,
        "sentences": sum(map(bool, ids)),
        "input_tokens": sum(map(len, ids)),
        "unknown_tokens": sum(row.count(tokenizer.unk_id) for row in ids),
        "instances": len(lengths),
        "row_tokens": 131 * len(lengths),
        "output_tokens": lengths.sum(),
        "masked_tokens": masked,
        "label_1": records["next_sentence_labels"].sum(),
        # 0.15 * 117 rounds to 18, one more than there is room for.
        "limited_masks": (lengths >= 117).sum(),
        "length_histogram": {str(n): count for n, count in collections.Counter(lengths).items()},
        "shards": {
            str(path): {"records": len(read_records([path])["input_ids"]), "bytes": size}
            for path, size in ((path, path.stat().st_size) for path in outputs)
        },
    }
    assert {name: value[name] for name in expected} == expected and value["limited_masks"]
    assert [*value["length_histogram"]] == sorted(value["length_histogram"], key=int)
    shares = value["shares"]
    assert shares["padding_share"] == pytest.approx(1 - records["input_mask"].mean())
    assert shares["masked_share"] == pytest.approx(masked / lengths.sum())
    # The bounds are those of all tokens being the same, and all being equally frequent.
    assert 0 < shares["frequency_loss"] < np.log(value["input_tokens"])
    assert "piece_histogram" not in value


def test_packed_examples_are_counted_as_they_are_alone_and_rows_as_they_are_written(run):
    _, alone = run(short_seq_prob=1)
    outputs, packed = run(short_seq_prob=1, max_examples_per_row=3)
    each = [read_records([path])["input_mask"] for path in outputs]
    assert alone["rows"] == alone["instances"]
    for name in ("instances", "output_tokens", "label_1", "masked_tokens", "ngram_histogram"):
        assert packed[name] == alone[name]
    assert packed["rows"] == sum(map(len, each)) < alone["rows"]
    assert [shard["records"] for shard in packed["shards"].values()] == [*map(len, each)]
    padding = 1 - np.concatenate(each).mean()
    assert packed["shares"]["padding_share"] == pytest.approx(padding)


@pytest.mark.parametrize("changes", [{}, {"do_permutation": True}, {"ngram": 5}])
def test_ngrams_are_the_runs_of_masked_words_in_the_records(run, changes):
    outputs, report = run(**changes)
    _, lengths = count_words(read_records(outputs), CLS_ID, SEP_ID)
    assert report["ngram_histogram"] == {str(n): count for n, count in lengths.items()}


def test_ngrams_are_those_of_pieces_where_pieces_are_masked(run):
    outputs, report = run(do_whole_word_mask=False)
    records, expected = read_records(outputs), collections.Counter()
    for row, length in enumerate(records["input_mask"].sum(1)):
        filled = records["masked_lm_weights"][row] > 0
        positions = records["masked_lm_positions"][row][filled]
        assert positions.max() < length - 1
        breaks = np.flatnonzero(np.diff(positions) > 1)
        expected.update(np.diff([-1, *breaks, len(positions) - 1]).tolist())
    assert report["ngram_histogram"] == {str(n): count for n, count in expected.items()}


FLAGS = {"max_seq_length": 37, "dupe_factor": 1, "random_seed": 5}
SETTINGS = GeneratorSettings.of(input_file="", output_file="", **FLAGS)


@pytest.fixture(scope="module")
def blocks(tokenizer):
    documents = [[f"Some words, number {n}.", "And more of them."] for n in range(11)]
    starts = tokenizer.word_starts()
    return [
        examples.tokenize_documents(documents[first : first + 4], first, tokenizer, starts)
        for first in range(0, 11, 4)
    ]


def _count(report, block, tokenizer):
    drawn, masks = examples.draw_instances(block, SETTINGS), SETTINGS.mask_settings(tokenizer)
    report.count_input(block, tokenizer.unk_id, np.zeros(tokenizer.vocab_size, bool))
    report.count_pieces(block)
    built = examples.build_examples(block, drawn, SETTINGS.row_format(tokenizer), masks)
    report.count_output(drawn, built, masks)
    report.count_rows(len(drawn.seeds), SETTINGS.max_seq_length)


def test_merged_parts_are_the_report_of_the_whole(blocks, tokenizer):
    whole, parts = Report(), []
    for block in blocks:
        part = Report()
        _count(whole, block, tokenizer)
        _count(part, block, tokenizer)
        parts.append(Report.from_json(json.loads(json.dumps(part.to_json()))))
    assert whole.documents == 11
    tokens = np.concatenate([block.tokens for block in blocks])
    logs = np.log(np.bincount(tokens)[tokens] / len(tokens))
    assert whole.shares()["frequency_loss"] == pytest.approx(-logs.mean())
    assert Report.total(parts) == whole


def test_merging_adds_seconds_and_shards_and_keeps_the_highest_peak():
    first = Report(rows=3, seconds=2.0, peak_memory_bytes=7)
    first.count_shard("a", 100)
    second = Report(rows=2, seconds=3.0, peak_memory_bytes=5)
    second.count_shard("b", 70)
    first.merge(second)
    assert (first.seconds, first.peak_memory_bytes) == (5.0, 7)
    assert first.shards == {"a": {"records": 3, "bytes": 100}, "b": {"records": 2, "bytes": 70}}


def test_examples_without_masks_are_counted_and_drawn_without_masks(blocks, tmp_path):
    drawn, report = examples.draw_instances(blocks[0], SETTINGS), Report()
    report.count_output(drawn, {}, None)
    assert report.instances == len(drawn.seeds)
    assert report.masked_tokens == report.limited_masks == 0
    assert not report.ngram_histogram
    pytest.importorskip("matplotlib", reason="needs albert_tf[plots]")
    report.count_rows(len(drawn.seeds), SETTINGS.max_seq_length)
    write_plots(report, str(tmp_path / "page.png"))
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")


def test_a_report_has_words():
    assert "wrote 0 instances" in "\n".join(Report().lines())
    pairs = [(0, 5, 5, 9, 0, 0, 0), (5, 9, 0, 5, 1, 0, 7), (9, 20, 20, 43, 0, 0, 2)]
    batch, report = examples.Instances(np.array(pairs, np.int32), np.zeros(3, np.uint64)), Report()
    report.count_output(batch, {}, None)
    assert (report.truncated, report.dropped_tokens) == (2, 9)
    assert "truncated: 66.67%, which lost 9 tokens, 14.75% of their text" in "\n".join(
        report.lines()
    )
    report = Report(documents=9, instances=8, output_tokens=4000, label_1=3, limited_masks=1)
    report.seconds, report.peak_memory_bytes = 2.5, 10**8
    said = "\n".join(report.lines())
    assert "read 9 documents" in said and "wrote 8 instances, 4,000 tokens" in said
    assert "label 1 (swapped, or B from a random document): 37.50%" in said
    assert "max_predictions_per_seq left 12.50% of the instances" in said
    assert "2.5 seconds, 1,600 output tokens/s; 100 MB in the largest process" in said


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs Linux' /proc")
def test_peak_memory_is_in_bytes_and_at_least_that_of_this_process():
    report, status = Report(), pathlib.Path("/proc/self/status").read_text()
    high_water_kib = int(status.split("VmHWM:")[1].split()[0])
    report.measure_memory()
    # The process that started this one may have been larger, but not a hundred times. Linux counts
    # the two figures for each core by itself, and adds them up at other moments.
    assert 0.99 <= report.peak_memory_bytes / (1024 * high_water_kib) < 100


def test_report_lies_beside_the_records_and_not_among_them(tmp_path):
    assert report_path("out/x.tfrecord,y.tfrecord", ".json") == "out/x.report.json"
    assert report_path("out.v2/x.tf_record", ".png") == "out.v2/x.report.png"
    assert report_path("gs://b/wiki.en", ".json") == "gs://b/wiki.en.report.json"


def test_wrong_vocabulary_may_be_allowed(run, tmp_path, caplog):
    chinese = tmp_path / "chinese.txt"
    chinese.write_text("大禹治理洪水。\n他是一位国王。\n\n人民爱戴他。\n", encoding="utf-8")
    _, report = run(input_file=chinese, max_unknown_share=1)
    assert report["shares"]["unknown_share"] > 0.1
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert any("50.00% of the pieces are [UNK]: the vocabulary lacks 。" in text for text in said)


def test_plots_are_a_page(run, tmp_path):
    image = pytest.importorskip("matplotlib.image", reason="needs albert_tf[plots]")
    run(plots=True)
    page = image.imread(tmp_path / "a.report.png")
    height, width, _ = page.shape
    assert width > 1000 and height > 700
    # Each quarter shows something: bars in another colour than white and grey.
    coloured = np.ptp(page[..., :3], axis=2) > 0.2
    quarters = [half for part in np.array_split(coloured, 2) for half in np.array_split(part, 2, 1)]
    assert all(quarter.mean() > 0.01 for quarter in quarters)
