"""OpenVINO's tokenizers give our ids once one table has all of a tokenizer.json's steps."""

import json
import sys

import pytest

import albert_tf
from albert_tf.conversion.convert import convert
from albert_tf.text.sentence_piece import without_digit_commas
from albert_tf.text.vocabulary import Vocabulary
from tests.kit import tiny
from tests.kit.served_tasks import ODD, config_for
from tests.serving.test_other_runtimes import program_of, run
from tests.serving.test_web_page import SCRIPTS, of_script, trained

pytestmark = pytest.mark.peers
_ALL = """
import json
for text in json.load(open({path!r})):
    print(split([text])["input_ids"][0].tolist())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Returns Hugging Face's folder of a model with a vocabulary of ten scripts."""
    for package in ("openvino_tokenizers", "transformers"):
        pytest.importorskip(package)
    made = tmp_path_factory.mktemp("model")
    model = albert_tf.AlbertForSequenceClassification(config_for(words_of(made)), num_labels=3)
    stored = tiny.store(made, tiny.randomise(model), ("one", "two", "three"))
    convert(stored, "huggingface", str(made / "folder"))
    return made / "folder"


def words_of(directory):
    path = directory / "spiece.model"
    path.write_bytes(without_digit_commas(trained()))
    return Vocabulary.read(str(path), is_word_piece=False)


def test_ids_of_ten_scripts(folder, tmp_path):
    tokenizer = words_of(tmp_path).tokenizer
    texts = [text.replace("\0", "") for text in ODD if "[MASK]" not in text]
    texts += [text for script in SCRIPTS for text in of_script(script, 100)]
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    program = program_of("OpenVINO's tokenizers", folder)
    first, *said = run(
        sys.executable, "-c", program + _ALL.format(path=str(tmp_path / "texts.json"))
    ).splitlines()
    found = [json.loads(line)[1:-1] for line in (first, *said)]
    expected = [tokenizer.encode(text) for text in ("A warm film", *texts)]
    pairs = zip(("A warm film", *texts), found, expected, strict=True)
    differing = [text for text, ids, right in pairs if ids != right]
    # A capital sigma ends a word as any other letter; one of them has two splits of equal scores.
    assert len(differing) <= 12 and all("Σ" in text for text in differing)
    assert sum(map(bool, expected)) > 1000


def test_the_folder_itself_is_refused(folder):
    """If OpenVINO reads it one day, docs/serving.md no longer needs a program for it."""
    program = program_of("OpenVINO's tokenizers", folder)
    unchanged = [line for line in program.splitlines() if "backend_tokenizer" not in line]
    with pytest.raises(AssertionError, match="different normalization_form"):
        run(sys.executable, "-c", "\n".join(unchanged))
