"""The Hub's own reader finds everything in a model card, and its example runs in transformers."""

import re

import pytest

import albert_tf
from albert_tf.conversion import huggingface
from albert_tf.conversion.convert import convert
from albert_tf.storage import eval_results
from tests.kit import tiny

pytestmark = pytest.mark.peers
POOLERLESS = ("TokenClassification", "QuestionAnswering")


@pytest.fixture
def stored(golden, tmp_path):
    def write(architecture):
        labels = {"num_labels": 2} if "Classification" in architecture else {}
        config = tiny.config(num_hidden_layers=1, vocab_size=6000, max_position_embeddings=64)
        model_class = getattr(albert_tf, architecture.replace("MaskedLM", "PreTraining"))
        model_class(config, **labels).save(tmp_path / "model.keras")
        spm = str(golden / "spm" / "en_small.model")
        convert(str(tmp_path / "model.keras"), "tf1", str(tmp_path / "tf1"), spm_model_file=spm)
        return tmp_path / "tf1"

    return write


@pytest.mark.parametrize("architecture", huggingface.ARCHITECTURES)
def test_the_example_runs_as_it_stands(architecture, stored, hugging_face, tmp_path):
    drop = {"AlbertForMaskedLM": ["cls/seq_relationship", "bert/pooler"]}
    drop |= {f"AlbertFor{kind}": ["bert/pooler"] for kind in POOLERLESS}
    there, dropped = tmp_path / "there", drop.get(architecture, [])
    source = str(stored(architecture))
    convert(source, "huggingface", str(there), architecture=architecture, drop=dropped)
    (code,) = re.findall("```python\n(.*?)```", (there / "README.md").read_text(), re.DOTALL)
    printed = hugging_face("execute", code=code.replace("OWNER/NAME", str(there)))["printed"]
    assert "score" in printed or "tensor(" in printed or "[[" in printed


def test_the_hub_reads_the_header(stored, tmp_path):
    hub = pytest.importorskip("huggingface_hub")
    model = stored("AlbertForSequenceClassification")
    start = "hf://albert/albert-base-v2@main"
    tiny.fine_tuned("sst-2", "single_label_classification", init_checkpoint=start).write(str(model))
    scores = {"eval_accuracy": 0.75, "macro_f1": 0.7, "eval_loss": 0.5}
    eval_results.add(str(model), eval_results.Evaluation(40, "eval_accuracy", scores, True), [])
    convert(str(model), "huggingface", str(tmp_path / "there"))
    card = hub.ModelCard.load(tmp_path / "there" / "README.md")
    assert (card.data.license, card.data.base_model) == ("apache-2.0", "albert/albert-base-v2")
    assert (card.data.datasets, card.data.metrics) == (["nyu-mll/glue"], ["accuracy", "f1"])
    assert card.data.pipeline_tag == "text-classification" and card.data.tags == ["albert"]
    found = {each.metric_name: each.metric_value for each in card.data.eval_results}
    assert found == scores
    assert {each.dataset_config for each in card.data.eval_results} == {"sst2"}

    # One's own table, from one's own weights, under one's own licence.
    settings = {"init_checkpoint": "mine", "train_file": "a/train.csv", "eval_file": "a: dev.csv"}
    kind = "single_label_classification"
    tiny.fine_tuned("classification", kind, **settings).write(str(model))
    convert(str(model), "huggingface", str(tmp_path / "own"), license="mit")
    data = hub.ModelCard.load(tmp_path / "own" / "README.md").data
    assert (data.license, data.base_model, data.datasets) == ("mit", None, None)
    assert {(e.dataset_type, e.dataset_name) for e in data.eval_results} == {("csv", "a: dev.csv")}
