"""The Beam runner's files against the local runner's, and what is left when it fails.

Not tested here: runners on other machines. FnApiRunner runs the pipeline in this process, but
passes data between steps through Beam's encodings, as they all do.
"""

import gzip
import json

import pytest

from albert_tf.generator import documents, shards
from tests.generator import runs

pytest.importorskip("apache_beam", reason="needs albert_tf[beam]")

pytestmark = [
    pytest.mark.peers,
    # Beam and its imports give these.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


CUT_BLOCKS = documents.cut_blocks


def _cut_blocks_backwards(*arguments):
    return reversed(list(CUT_BLOCKS(*arguments)))


@pytest.fixture
def texts(golden, tmp_path):
    """Three files, of which the last two end within a document."""
    lines = (golden / "pretrain_data" / "text.txt").read_text(encoding="utf-8").splitlines(True)
    for number, (begin, end) in enumerate([(0, 50), (50, 400), (400, 1200)]):
        (tmp_path / f"text{number}.txt").write_text("".join(lines[begin:end]), encoding="utf-8")
    return tmp_path / "text*.txt"


@pytest.fixture
def run(texts, tmp_path):
    """Runs the script into a folder of its own, with blocks of a few thousand characters."""

    def run_with(runner, **changes):
        given = {
            "input_file": texts,
            "num_output_shards": 3,
            "block_megabytes": 0.005,
            "max_seq_length": 131,
            "dupe_factor": 2,
            "num_processes": None if runner == "beam" else 1,
            "runner": runner,
            "beam_options": "--runner=FnApiRunner" if runner == "beam" else "",
        } | changes
        runs.make(tmp_path / runner, **given)
        return tmp_path / runner

    return run_with


def _read_records(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*.tfrecord*")}


def test_files_and_report_are_those_of_the_local_runner(run):
    local, beam = run("local"), run("beam")
    assert len(_read_records(local)) == 3
    assert _read_records(beam) == _read_records(local)
    assert runs.report(beam) == runs.report(local)
    assert {path.name for path in beam.iterdir()} == {path.name for path in local.iterdir()}


def test_other_formats_and_choices_travel_to_the_workers_too(run, golden, tmp_path):
    pytest.importorskip("sentencex", reason="needs albert_tf[data]")
    paragraphs = (golden / "pretrain_data" / "text.txt").read_text(encoding="utf-8").split("\n\n")
    path = tmp_path / "text.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"body": text}) + "\n" for text in paragraphs[:40])
    changes = {"input_file": path, "input_format": "jsonl", "text_field": "body"}
    changes |= {"single_segment": "split", "word_starts": "unicode", "num_output_shards": 1}
    assert _read_records(run("beam", **changes)) == _read_records(run("local", **changes))


def test_order_in_which_blocks_come_back_does_not_matter(run, monkeypatch):
    local = run("local")
    monkeypatch.setattr(documents, "cut_blocks", _cut_blocks_backwards)
    assert _read_records(run("beam")) == _read_records(local)


def test_failure_of_a_worker_is_one_line_and_leaves_nothing(run, texts, tmp_path):
    broken = tmp_path / "text3.txt"
    broken.write_bytes(b"Words.\n\n\xff\n")
    old = tmp_path / "beam" / "out.tfrecord-00000-of-00003"
    old.parent.mkdir()
    old.write_text("old")
    with pytest.raises(SystemExit, match="error: the Beam pipeline failed: .*text3.txt, line 3 is"):
        run("beam")
    assert _read_records(old.parent) == {old.name: b"old"}
    assert list(old.parent.iterdir()) == [old]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beam_options": "--runner=NoSuch"}, "error: the Beam pipeline failed: .* runner: NoSuch"),
        ({"beam_options": "--runner='x"}, 'error: --beam_options .*No closing quotation.: "--run'),
        ({"num_output_shards": 999}, r"error: --input_file: the text fills \d+ of 999 output"),
        (
            {"max_unknown_share": 0, "spm_model_file": "", "vocab_file": "vocab.txt"},
            "error: .* tokens are \\[UNK\\], more than --max_unknown_share",
        ),
    ],
)
def test_bad_flag_is_one_line_and_leaves_nothing(run, tmp_path, monkeypatch, changes, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    with pytest.raises(SystemExit, match=message):
        run("beam", **changes)
    assert not list(tmp_path.glob("beam/*"))


def test_another_run_is_left_alone(run, tmp_path):
    first = tmp_path / "beam" / "out.tfrecord-00000-of-00003"
    first.parent.mkdir()
    left = first.with_name(first.name + ".unfinished.json")
    left.write_text("{}")
    with pytest.raises(SystemExit, match="belongs to an unfinished run of --runner=local"):
        run("beam")
    assert list(left.parent.iterdir()) == [left]
    shard = left.rename(first.with_name(first.name + ".unfinished"))
    with shards.hold_parts_folder([str(first)]):
        with pytest.raises(SystemExit, match="another run .* is using .*unfinished.parts"):
            run("beam")
        assert shard.read_text() == "{}"
