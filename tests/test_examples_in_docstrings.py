"""Examples in docstrings run and print what they say; what is public has one.

Can't see: public methods and functions that `import albert_tf` does not name.
"""

from __future__ import annotations

import ast
import doctest
import importlib
import pathlib

import pytest

import albert_tf

ROOT = pathlib.Path(albert_tf.__file__).parent
# Files and folders whose public classes need an example, beside what `import albert_tf` gives.
NEED_EXAMPLES = ("model", "tasks/preprocessor.py", "text/tokenization.py", "training/trainer.py")
# Those that have none yet.
YET_WITHOUT = {
    *("AlbertConfig", "AlbertForMultipleChoice", "AlbertForPreTraining", "AlbertLayer"),
    *("AlbertForQuestionAnswering", "AlbertForQuestionAnsweringV2", "AlbertModel", "Block"),
    *("AlbertForSequenceClassification", "AlbertForTokenClassification", "AnswerabilityHead"),
    *("ClassifierHead", "ClassifierModel", "ConditionalSpanHead", "ConfiguredModel", "Encoder"),
    *("Embeddings", "FeedForward", "FineTunedModel", "MaskedLMHead", "Pooler", "Preprocessor"),
    *("SelfAttention", "SentenceOrderHead", "Sublayer", "SublayerWeights", "Tokenizer", "Trainer"),
    *("CheckpointWriter", "InputByLength", "StepIterators", "TextBatches", "TextColumns"),
    *("export_saved_model", "load_config", "load_weights"),
}
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def _name(path: pathlib.Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def _undocumented() -> set[str]:
    missing = {
        name
        for name, home in albert_tf._HOMES.items()
        if ">>>" not in (getattr(albert_tf, name).__doc__ or "")
    }
    for place in NEED_EXAMPLES:
        for path in [ROOT / place] if place.endswith(".py") else (ROOT / place).glob("*.py"):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    is_error = any(ast.unparse(base).endswith("Error") for base in node.bases)
                    if not is_error and ">>>" not in (ast.get_docstring(node) or ""):
                        missing.add(node.name)
    return missing


WITH_EXAMPLES = [_name(path) for path in sorted(ROOT.rglob("*.py")) if ">>>" in path.read_text()]


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_examples_print_what_they_say(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = doctest.testmod(importlib.import_module(module), optionflags=OPTIONS)
    assert results.attempted and not results.failed


def test_what_is_public_has_an_example():
    assert _undocumented() <= YET_WITHOUT
