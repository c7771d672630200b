"""Records and masks against those of the release on the same text, as distributions.

Both ways have to pass: masks that the generator draws in five passes over the text, and masks that
training draws in five epochs, from one pass's records without masks.

Shares of masking are compared by chi-square (p 1e-4). Numbers and lengths of instances vary by
several percent from seed to seed, in the release as here, because one coin fixes the target length
of a whole document: they are compared by Student's t over the runs (p 1e-3 for each measure).

Not tested here: which n-grams were masked, only the runs that they leave; the order of records.
"""

import collections
import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.records import masking
from albert_tf.records.input_pipeline import DynamicMasking
from tests.generator import record_statistics, runs
from tests.generator.record_statistics import count_words, measure, read_compact, read_records
from tests.kit.statistics_of_samples import assert_same_distribution

CLS_ID, SEP_ID, MASK_ID = 2, 3, 4
PASSES = 5
SEEDS = (1, 2, 3, 5, 7, 11)
# Two-sided 0.1 % quantiles of Student's t, by degrees of freedom.
T_LIMITS = {5: 6.869, 7: 5.408}


def _run_generator(tmp_path, text, model, seed, **changes):
    output = tmp_path / f"{seed}.tfrecord"
    given = {"input_file": text, "output_file": output, "spm_model_file": model}
    return runs.make(tmp_path, random_seed=seed, **given, **changes)


def _generate(*args, **changes):
    return read_records([_run_generator(*args, **{"dupe_factor": PASSES, **changes})])


def _draw(*args, **changes):
    """Returns records with the masks that training draws for records without them."""
    mask_flags = {field.name for field in dataclasses.fields(masking.MaskingSettings)}
    given = {name: changes.pop(name) for name in mask_flags & changes.keys()}
    epochs = changes.pop("dupe_factor", PASSES)
    output = _run_generator(*args, masking="dynamic", **changes)
    examples, row_format, rows = read_compact(output)
    settings = masking.MaskingSettings(row_format.vocab_size, row_format.mask_id, **given)
    draw = DynamicMasking(row_format, settings, seed=args[-1])
    examples = {name: np.concatenate([values] * epochs) for name, values in examples.items()}
    places = tf.range(len(examples["token_ids"]), dtype=tf.int64)
    features = {name: np.asarray(value) for name, value in draw(examples, places).items()}
    features["token_boundary"] = np.concatenate([rows.token_boundaries()] * epochs)
    features["next_sentence_labels"] = features.pop("sentence_order_labels")
    return features


MASKED_BY = pytest.mark.parametrize("make", [_generate, _draw], ids=["generator", "training"])


def _pooled(counts):
    return sum(map(collections.Counter, counts), collections.Counter())


def _assert_shares_agree(counts, runs, key, totals):
    """Compares counts with the shares of the release's runs, each of a known total."""
    released = collections.Counter()
    for run, total in zip(runs, totals, strict=True):
        released.update({value: share * total for value, share in run[key].items()})
    values = sorted(released, key=lambda value: (len(value), value))
    ours = {str(value): count for value, count in counts.items()}
    extra = sum(count for value, count in ours.items() if value not in released)
    ours[values[-1]] = ours.get(values[-1], 0) + extra
    assert_same_distribution([ours.get(v, 0) for v in values], [released[v] for v in values])


def _assert_masking_agrees(all_records, runs):
    masked = [run["instances"] * run["masked_per_instance_mean"] for run in runs]
    replaced = _pooled(record_statistics.count_replacements(one, MASK_ID) for one in all_records)
    _assert_shares_agree(replaced, runs, "masking_80_10_10", masked)
    key = "run_length_of_masked_tokens"
    means = [sum(int(length) * share for length, share in run[key].items()) for run in runs]
    token_runs = [count / mean for count, mean in zip(masked, means, strict=True)]
    counted = _pooled(map(record_statistics.count_token_runs, all_records))
    _assert_shares_agree(counted, runs, key, token_runs)
    # The release's number of word runs isn't stored; it equals that of token runs to within 1 %.
    counted = _pooled(count_words(one, CLS_ID, SEP_ID)[1] for one in all_records)
    _assert_shares_agree(counted, runs, "run_length_of_masked_whole_words", token_runs)


def _assert_means_agree(name, ours, released):
    ours, released = np.array(ours, float), np.array(released, float)
    degrees = len(ours) + len(released) - 2
    squares = ((ours - ours.mean()) ** 2).sum() + ((released - released.mean()) ** 2).sum()
    spread = np.sqrt(squares / degrees * (1 / len(ours) + 1 / len(released)))
    difference = ours.mean() - released.mean()
    # Measures that don't vary must be equal, except for the rounding of a mean.
    assert abs(difference) <= T_LIMITS[degrees] * spread + 1e-9, (
        f"{name}: {ours.mean():.6g} here, {released.mean():.6g} in the release, "
        f"standard error {spread:.2g}"
    )


def _assert_all_agree(make, tmp_path, model, released):
    all_records = [make(tmp_path, runs.TEXT, model, seed) for seed in SEEDS]
    measures = [measure(one, max_predictions=20) for one in all_records]
    for name in measures[0]:
        _assert_means_agree(name, [one[name] for one in measures], [run[name] for run in released])
    _assert_masking_agrees(all_records, released)


@pytest.fixture(scope="module")
def stats(golden):
    return json.loads((golden / "pretrain_data" / "stats.json").read_text())


@pytest.mark.slow
@MASKED_BY
def test_small_vocabulary_gives_the_statistics_of_the_release(make, tmp_path, stats):
    _assert_all_agree(make, tmp_path, runs.MODEL, stats["en_small"]["runs"])


@MASKED_BY
def test_released_vocabulary_gives_the_statistics_of_the_release(make, tmp_path, spm_30k, stats):
    _assert_all_agree(make, tmp_path, spm_30k, stats["en30k"]["runs"])


VARIANTS = ["ngram1", "favor_longer", "no_whole_word"]
VARIANTS += ["random_next_sentence", "permutation", "len64_short50"]


@MASKED_BY
@pytest.mark.parametrize("variant", VARIANTS)
def test_other_flags_give_the_statistics_of_the_release(make, tmp_path, spm_30k, stats, variant):
    run = stats["variants_on_text_first1800lines"][variant]
    lines = runs.TEXT.read_text().splitlines(keepends=True)
    text = tmp_path / "first1800lines.txt"
    text.write_text("".join(lines[:1800]))
    all_records = [make(tmp_path, text, spm_30k, seed, **run["flags"]) for seed in SEEDS]
    predictions = run["flags"].get("max_predictions_per_seq", 20)
    measures = [measure(one, predictions) for one in all_records]
    for name in ("instances", "mean_length", "fraction_full_length", "sop_label_1_rate"):
        _assert_means_agree(name, [one[name] for one in measures], [run[name]])
    _assert_masking_agrees(all_records, [run])
