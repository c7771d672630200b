"""The code of docs/api.md runs, in its order, with a small model."""

import json
import pathlib
import re

import numpy as np
import pytest

from tests.kit import other_libraries

TEXT = pathlib.Path(__file__).parents[1].joinpath("docs/api.md").read_text()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning")  # Keras always warns.
def test_its_code_runs(golden, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    places = other_libraries.small_models(tmp_path, golden)
    code = "".join(re.findall("```python\n(.*?)```", TEXT, re.DOTALL))
    for stated, place in places.items():
        code = code.replace(json.dumps(stated), json.dumps(place))
    texts, labels = other_libraries.DATA["texts"], [0, 1, 2, 0] * 5
    names = {"texts": texts, "labels": labels, "held_out": texts, "held_out_labels": labels}
    exec(code, names)
    assert np.isfinite(names["logits"]).all() and len(names["scores"]) == 5
    outputs = names["two_headed"](names["preprocess"](texts))
    shapes = {name: values.shape for name, values in outputs.items()}
    assert shapes == {"topic": (20, 3), "age": (20, 1)}
    assert names["scratch"].config.num_hidden_layers == 6
