import pytest

from albert_tf.cli import create_pretraining_data
from albert_tf.generator.settings import GeneratorSettings
from tests.tiny import parse


@pytest.fixture
def run(golden, tmp_path):
    """Runs the script on the golden text, with changed flags."""

    def run_with(**changes):
        given = {
            "input_file": golden / "pretrain_data" / "text.txt",
            "output_file": tmp_path / "out.tfrecord",
            "spm_model_file": golden / "spm" / "en_small.model",
            "max_seq_length": 128,
            "dupe_factor": 1,
            "num_processes": 1,
        } | changes
        create_pretraining_data.main(parse(GeneratorSettings, **given))
        return given["output_file"]

    return run_with


@pytest.fixture
def short_text(golden, tmp_path):
    """The first nine documents of the golden text."""
    path = tmp_path / "short.txt"
    whole = (golden / "pretrain_data" / "text.txt").read_text(encoding="utf-8")
    path.write_text("\n\n".join(whole.split("\n\n")[:9]), encoding="utf-8")
    return path
