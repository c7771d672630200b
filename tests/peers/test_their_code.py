"""docs/from_other_libraries.md: the other libraries' code runs, and their names are there.

Not tested here: run_glue.py, which is not in transformers' package, and the release.
"""

import importlib.util
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from tests.kit import other_libraries

pytestmark = pytest.mark.peers
# Their names in version 4.
OF_VERSION_4 = {"warmup_ratio", "group_by_length"}


@pytest.fixture(scope="module")
def places(golden, tmp_path_factory):
    return other_libraries.small_models(tmp_path_factory.mktemp("models"), golden)


@pytest.mark.parametrize("name", ["fine_tune", "fill_mask"])
def test_transformers_code_runs(name, places, hugging_face, tmp_path):
    texts = {key: other_libraries.DATA[key] for key in ("texts", "labels")}
    start = f"import os\nos.chdir({str(tmp_path)!r})\nglobals().update({texts!r})\n"
    code = other_libraries.program(name, "theirs", places)
    assert hugging_face("execute", code=start + code)["printed"]


def test_arguments_of_their_trainer_are_there(hugging_face):
    code = (
        "import dataclasses, transformers\nprint({*map(str, dir(transformers.TrainingArguments))}"
    )
    code += " | {field.name for field in dataclasses.fields(transformers.TrainingArguments)})"
    known = hugging_face("execute", code=code)["printed"]
    rows = other_libraries.rows("TrainingArguments")[1:]
    stated = [name for row in rows for name in re.findall(r"`(\w+)\b[^`(]*`", row[0])]
    assert len(stated) > 30
    assert [name for name in stated if f"'{name}'" not in known and name not in OF_VERSION_4] == []


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning")  # By Keras, always.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # A file left open.
@pytest.mark.parametrize("side", ["theirs", "ours"])
def test_kerashubs_code_runs_and_ours_for_it(side, places, keras_hub):
    names = dict(other_libraries.DATA)
    exec(other_libraries.program("kerashub", side, places), names)
    assert np.isfinite(names["logits"]).all()


def test_kerashubs_names_are_there(keras_hub):
    rows = other_libraries.rows("KerasHub")[1:]
    stated = {name for row in rows for name in re.findall(r"\b(Albert\w+)", row[0])}
    assert len(stated) == 4 and stated <= {*dir(keras_hub.models)}


def test_the_model_gardens_code_runs(places):
    if importlib.util.find_spec("official") is None:
        pytest.skip("tf-models-official is not installed: it needs Keras 2")
    data = {key: other_libraries.DATA[key].tolist() for key in ("ids", "mask", "segments")}
    start = f"import numpy as np\nids, mask, segments = map(np.array, {[*data.values()]!r})\n"
    code = start + other_libraries.program("garden", "theirs", places) + "\nprint(logits.shape)"
    environment = {**os.environ, "TF_USE_LEGACY_KERAS": "1"}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    assert b"(1, 2)" in found.stdout, found.stderr[-2000:]
