"""Models named hf://OWNER/NAME: what is fetched from a stub of the Hub, kept and refused."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from albert_tf.conversion.convert import convert
from albert_tf.storage import hub
from tests.kit import goldens, tiny
from tests.kit.hub import COMMIT, serve

ROOT = pathlib.Path(__file__).parents[2]
NAME = "someone/tiny"
WANTED = {"config.json", "model.safetensors", "vocab.txt", "run.json"}
# The last two are those of older tokenizers.
ADDED = {"special_tokens_map.json", "added_tokens.json"}
WANTED |= {"tokenizer.json", "tokenizer_config.json", *ADDED}
# Other files that a model's page may have.
OTHERS = ("pytorch_model.bin", "modeling.py", "tf_model.h5", "onnx/model.safetensors", "README.md")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("hub") / "model"
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(995))]
    vocabulary = directory.parent / "vocab.txt"
    vocabulary.write_text("\n".join(pieces))
    source = str(shutil.copytree(goldens.FOLDER / "base", directory.parent / "trained"))
    tiny.fine_tuned("mine", reading={"max_seq_length": 16}).write(source)
    convert(source, "huggingface", str(directory), vocab_file=str(vocabulary))
    found = {path.name: path.read_bytes() for path in directory.iterdir()}
    assert set(found) == {*WANTED - ADDED, "README.md"}
    found |= {name: b"{}" + b" " * len(name) for name in ADDED}
    return {**found, **dict.fromkeys(OTHERS, b"not to be fetched")}


def run(code: str, cache: pathlib.Path, endpoint: str, **environment: str):
    """Runs Python code in a process of its own: huggingface_hub reads its environment on import."""
    own = {"HF_HOME": str(cache), "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    how = {"cwd": ROOT, "env": {**os.environ, **own, **environment}, "timeout": 120}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, **how)


def printed(*arguments, **environment: str) -> str:
    found = run(*arguments, **environment)
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


LOCAL = "from albert_tf.storage import hub; print(hub.download('hf://{}'))"
MODEL = """
from albert_tf import conversion
from albert_tf.text import vocabulary
name = "hf://someone/tiny@main"
words, config = vocabulary.find(name), conversion.load_config(name)
words.check(config)
print(config.to_json())
"""


def test_config_weights_and_vocabulary_are_fetched_and_nothing_else(files, tmp_path):
    pytest.importorskip("huggingface_hub")
    with serve({NAME: files}) as (endpoint, fetched):
        directory = printed(LOCAL.format(NAME), tmp_path, endpoint)
        # A second time, from the cache.
        assert printed(LOCAL.format(f"{NAME}@{COMMIT}"), tmp_path, endpoint) == directory
        assert sorted(fetched) == sorted(WANTED)
    assert {path.name for path in pathlib.Path(directory).iterdir()} == WANTED
    # The server is gone, as a network may be.
    for environment in ({}, {"HF_HUB_OFFLINE": "1"}):
        config = json.loads(printed(MODEL, tmp_path, endpoint, **environment))
        assert config == goldens.config("base").to_dict()


def test_modules_of_sentence_transformers_are_fetched(files, tmp_path):
    pytest.importorskip("huggingface_hub")
    modules = {"modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"}
    modules |= {"1_Pooling/config.json", "2_Dense/config.json", "3_Normalize/config.json"}
    modules.add("2_Dense/model.safetensors")
    own = {name: name.encode() for name in modules}
    with serve({NAME: {**files, **own}}) as (endpoint, fetched):
        printed(LOCAL.format(NAME), tmp_path, endpoint)
        assert {*fetched} == WANTED | modules


def test_tensorflow_weights_are_fetched_if_there_are_no_others(files, tmp_path):
    pytest.importorskip("huggingface_hub")
    served = {n: c for n, c in files.items() if n != "model.safetensors"}
    with serve({NAME: served}) as (endpoint, fetched):
        printed(LOCAL.format(NAME), tmp_path, endpoint)
    assert sorted(fetched) == sorted({*WANTED, "tf_model.h5"} - {"model.safetensors"})


REFUSED = """
import sys
sys.modules["tensorflow"] = None
from albert_tf.cli import convert
from albert_tf.console.settings import parse
for name in {}:
    try:
        argv = ["", f"--from=hf://{{name}}", "--to=huggingface", "--output_dir={}"]
        convert.main(parse(convert.ConversionSettings, argv))
    except SystemExit as ended:
        print(ended.code)
"""


def test_what_the_hub_lacks_is_one_line(files, tmp_path):
    pytest.importorskip("huggingface_hub")
    served = {n: c for n, c in files.items() if n not in ("model.safetensors", "tf_model.h5")}
    messages = {"someone/unknown": "no such model, or you have no access"}
    messages |= {f"{NAME}@v9": "no revision 'v9'", NAME: "no weights"}
    with serve({NAME: served}) as (endpoint, _):
        found = run(REFUSED.format(list(messages), tmp_path / "out"), tmp_path, endpoint)
    assert found.returncode == 0, found.stderr
    logged = found.stderr.splitlines()
    assert [line for line in logged if not line.startswith(f"INFO:absl:hf://{NAME}: ")] == []
    for line, (name, message) in zip(found.stdout.splitlines(), messages.items(), strict=True):
        assert line.startswith(f"error: hf://{name}") and message in line
    assert not (tmp_path / "out").exists()


def test_a_missing_package_is_named_and_local_paths_stay_as_they_are(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"pip install 'albert_tf\[hub\]'"):
        hub.download(f"hf://{NAME}")
    assert hub.download(tmp_path) == str(tmp_path)
    assert hub.download("gs://bucket/model.ckpt-1") == "gs://bucket/model.ckpt-1"
