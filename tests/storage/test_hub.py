"""Models named hf://OWNER/NAME: what is fetched from a stub of the Hub, kept and refused."""

import contextlib
import hashlib
import http.server
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping

import pytest

from albert_tf.conversion.convert import convert
from albert_tf.storage import hub
from tests import goldens, tiny

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextlib.contextmanager
def serve(
    repositories: Mapping[str, Mapping[str, bytes]],
) -> Iterator[tuple[str, list[str]]]:
    """Serves the files of models, and of data sets, datasets/OWNER/NAME, by the names of these.

    Yields the address, and the names of the files fetched so far.
    """
    fetched: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            name = next((n for n in repositories if f"/{n}/" in f"{path}/"), "none")
            files = repositories.get(name, {})
            file = path.removeprefix(f"/{name}/resolve/{COMMIT}/")
            api = f"/api/{name}" if name.startswith("datasets/") else f"/api/models/{name}"
            if file in files:
                if self.command == "GET":
                    fetched.append(file)
                tag = {"ETag": f'"{_digest(files[file])}"', "X-Repo-Commit": COMMIT}
                self._send(files[file], tag)
            elif path in (api, f"{api}/revision/main", f"{api}/revision/{COMMIT}"):
                listed = [{"rfilename": file} for file in files]
                self._send({"id": name, "modelId": name, "sha": COMMIT, "siblings": listed})
            elif path == f"{api}/tree/{COMMIT}":
                self._send([_entry(file, content) for file, content in files.items()])
            else:
                kind = "Revision" if path.startswith(f"{api}/") else "Repo"
                self._send({}, {"X-Error-Code": f"{kind}NotFound"}, 404)

        do_HEAD = do_GET

        def _send(self, answer: object, headers: Mapping[str, str] = {}, status: int = 200) -> None:
            content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            for header, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(header, value)
            self.end_headers()
            self.wfile.write(content if self.command == "GET" else b"")

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", fetched
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _entry(file: str, content: bytes) -> dict[str, object]:
    return {"type": "file", "path": file, "size": len(content), "oid": _digest(content)}


def _digest(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


ROOT = pathlib.Path(__file__).parents[2]
NAME = "someone/tiny"
WANTED = {"config.json", "model.safetensors", "vocab.txt", "run.json"}
# The last two are those of older tokenizers.
ADDED = {"special_tokens_map.json", "added_tokens.json"}
WANTED |= {"tokenizer.json", "tokenizer_config.json", *ADDED}
# What a model's page may hold besides.
OTHERS = ("pytorch_model.bin", "modeling.py", "tf_model.h5", "onnx/model.safetensors", "README.md")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Returns the content of a model's files by name."""
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
    environment = {
        **os.environ,
        "HF_HOME": str(cache),
        "HF_ENDPOINT": endpoint,
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        **environment,
    }
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


LOCAL = "from albert_tf.storage import hub; print(hub.download('hf://{}'))"
MODEL = """
import json
from albert_tf import conversion
from albert_tf.text import vocabulary
name = "hf://someone/tiny@main"
words, config = vocabulary.find(name), conversion.load_config(name)
words.check(config)
print(json.dumps(config.to_dict()))
"""


def test_config_weights_and_vocabulary_are_fetched_and_nothing_else(files, tmp_path):
    pytest.importorskip("huggingface_hub")
    with serve({NAME: files}) as (endpoint, fetched):
        found = run(LOCAL.format(NAME), tmp_path, endpoint)
        assert found.returncode == 0, found.stderr
        assert sorted(fetched) == sorted(WANTED)
        # A second time, from the cache.
        again = run(LOCAL.format(f"{NAME}@{COMMIT}"), tmp_path, endpoint)
        assert again.stdout == found.stdout
        assert len(fetched) == len(WANTED)
    directory = pathlib.Path(found.stdout.strip())
    assert {path.name for path in directory.iterdir()} == WANTED
    # The server is gone, as a network may be.
    for environment in ({}, {"HF_HUB_OFFLINE": "1"}):
        offline = run(MODEL, tmp_path, endpoint, **environment)
        assert offline.returncode == 0, offline.stderr
        ours = json.loads((goldens.FOLDER / "base" / "albert_config.json").read_bytes())
        assert json.loads(offline.stdout)["hidden_size"] == ours["hidden_size"]


def test_tensorflow_weights_are_fetched_if_there_are_no_others(files, tmp_path):
    pytest.importorskip("huggingface_hub")
    served = {n: c for n, c in files.items() if n != "model.safetensors"}
    with serve({NAME: served}) as (endpoint, fetched):
        found = run(LOCAL.format(NAME), tmp_path, endpoint)
    assert found.returncode == 0, found.stderr
    assert sorted(fetched) == sorted({*WANTED, "tf_model.h5"} - {"model.safetensors"})


REFUSED = """
from albert_tf.cli import convert
from albert_tf.console.settings import parse
for name in {}:
    try:
        argv = ["", f"--from=hf://{{name}}", "--to=tf1", "--output_dir={}"]
        convert.main(parse(convert.ConversionSettings, argv))
    except SystemExit as ended:
        print(ended.code)
"""


def test_what_the_hub_lacks_is_one_line(files, tmp_path):
    pytest.importorskip("huggingface_hub")
    served = {n: c for n, c in files.items() if n not in ("model.safetensors", "tf_model.h5")}
    messages = {
        "someone/unknown": "the Hub has no such model, or you have no access",
        f"{NAME}@v9": "the model has no revision 'v9'",
        NAME: "has no weights",
    }
    with serve({NAME: served}) as (endpoint, _):
        found = run(REFUSED.format(list(messages), tmp_path / "out"), tmp_path, endpoint)
    assert found.returncode == 0, found.stderr
    logged = found.stderr.splitlines()
    assert [line for line in logged if not line.startswith(f"INFO:absl:hf://{NAME}: ")] == []
    for line, (name, message) in zip(found.stdout.splitlines(), messages.items(), strict=True):
        assert line.startswith(f"error: hf://{name}") and message in line
    assert not (tmp_path / "out").exists()


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"pip install 'albert_tf\[hub\]'"):
        hub.download(f"hf://{NAME}")


def test_local_paths_stay_as_they_are(tmp_path):
    assert hub.download(tmp_path) == str(tmp_path)
    assert hub.download("gs://bucket/model.ckpt-1") == "gs://bucket/model.ckpt-1"
