"""Measures the table at the head of docs/serving.md: start, time, memory and disk of each way.

    make bench-serving-table     or    python research/benchmarks/serving_table.py

Classifiers with random weights, of ALBERT-base's size and of the demo's, are exported in each
format. Each way has a process of its own, which imports, loads and answers a text of eight pieces,
and then repeats the answer for a few seconds. Each way runs three times, never two at once; the
table has the medians. Measure on an idle machine.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
NODE_PACKAGES = ROOT / "tests" / "peers" / "node_modules"
# Model -> its config, and the number of words in its vocabulary.
MODELS = {"base": ("albert_base_v2", 29_995), "era": ("albert_tiny", 7_995)}
TEXT = " ".join(f"w{i}" for i in range(6))  # Eight pieces with [CLS] and [SEP].

_PYTHON = """
import time
start = time.perf_counter()
import json, re, sys
folder, text = sys.argv[1:]
measured = "self"
{load}
def measure():
    answer()
    first, times = time.perf_counter() - start, []
    while sum(times) < 3 and len(times) < 300:
        before = time.perf_counter()
        answer()
        times.append(time.perf_counter() - before)
    # Not getrusage's: that is at least what the process had that started this one.
    (kilobytes,) = re.findall(r"VmHWM:\\s*(\\d+)", open(f"/proc/{{measured}}/status").read())
    print(json.dumps([first, 1e3 * sorted(times)[len(times) // 2], int(kilobytes) / 1e3]))
measure()
"""
_WITHOUT_TENSORFLOW = """
for name in ("tensorflow", "tensorflow_text", "keras", "tensorboard", "tqdm"):
    sys.modules[name] = None
import albert_tf
"""
_LOAD_EXPORTED = (
    _WITHOUT_TENSORFLOW
    + """
model = albert_tf.load_exported(folder)
def answer():
    return model([text])
"""
)
_SERVER = """
import atexit, http.client, socket, subprocess
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
command = [sys.executable, "-m", "albert_tf.serving.server", "--model=m=" + folder]
command += [f"--port={port}", "--noaccess_log"]
server = subprocess.Popen(command, stdout=subprocess.DEVNULL)  # Numbers stand in our output.
atexit.register(server.terminate)
measured, body = server.pid, json.dumps({"instances": [text]})
connection = http.client.HTTPConnection("127.0.0.1", port)
while not connection.sock:
    try:
        connection.connect()
    except ConnectionRefusedError:
        time.sleep(0.01)
def answer():
    connection.request("POST", "/v1/models/m:predict", body)
    return json.loads(connection.getresponse().read())["predictions"]
"""
_OPENVINO = (
    _WITHOUT_TENSORFLOW
    + """
import glob
import openvino
from albert_tf.answers.rows import pair_features
from albert_tf.text import vocabulary
tokenizer = vocabulary.find(folder).tokenizer
model = openvino.Core().compile_model(*glob.glob(folder + "/*.onnx"), "CPU")
def answer():
    features = pair_features(tokenizer, text, None, 512)
    return model({name: values[None] for name, values in features.items()})
"""
)
_SAVED_MODEL = """
import tensorflow as tf
import tensorflow_text
model = tf.saved_model.load(folder)
def answer():
    return model.signatures["serving_default"](text=tf.constant([text]))["label"].numpy()
"""
_NODE = """
import { readFileSync } from "node:fs";
import { env, pipeline } from "@huggingface/transformers";
const [folder, text] = process.argv.slice(2);
env.allowRemoteModels = false;
env.localModelPath = "/";
const answer = await pipeline("text-classification", folder, { dtype: "q8" });
await answer(text);
const first = performance.now() / 1e3;
const times = [];
for (let i = 0, sum = 0; i < 300 && sum < 3e3; i++, sum += times.at(-1)) {
  const before = performance.now();
  await answer(text);
  times.push(performance.now() - before);
}
times.sort((a, b) => a - b);
const middle = times[Math.floor(times.length / 2)];
const [, kilobytes] = readFileSync("/proc/self/status", "utf8").match(/VmHWM:\\s*(\\d+)/);
console.log(JSON.stringify([first, middle, kilobytes / 1e3]));
"""
_PAGE = """
import { execFileSync } from "node:child_process";
const [folder, text] = process.argv.slice(2);
const questions = JSON.stringify(Array(20).fill([text]));
const shown = execFileSync("node", ["SCRIPT", folder, "/usr/bin/chromium"], { input: questions });
const { milliseconds, answers, memory } = JSON.parse(shown);
const times = answers.map(({ status }) => Number(/\\d+/.exec(status))).sort((a, b) => a - b);
console.log(JSON.stringify([milliseconds[0] / 1e3, times[10], memory]));
"""
# The packages that load_exported imports, besides a runtime.
_OURS = (
    *("absl-py", "google-crc32c", "h5py", "ml-dtypes", "numpy", "protobuf", "safetensors"),
    "sentencepiece",
)


class Way(NamedTuple):
    """A way to run a model.

    Attributes:
      name: Where it runs.
      section: The command that exports for it, and the section of docs/serving.md about it.
      format: What is exported.
      program: The program that measures it; in Python only the part that defines `answer`.
      packages: Packages to install; in Python their dependencies are needed, too.
      leaves_out: Files of the export that it does not need.
    """

    name: str
    section: str
    format: str
    program: str
    packages: tuple[str, ...]
    leaves_out: str = ""

    @property
    def is_javascript(self) -> bool:
        return "process.argv" in self.program


_JS = ("@huggingface", "onnxruntime-node", "onnxruntime-common", "onnxruntime-web", "sharp", "@img")
# The files that a browser downloads: 3.7 MB where the host compresses.
_RUNTIME = ("ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm")
WAYS = (
    Way(
        "Python without TensorFlow, int8",
        "`albert-export --format=onnx_int8`: [load_exported](#in-python-without-tensorflow)",
        "onnx_int8",
        _LOAD_EXPORTED,
        ("onnxruntime", *_OURS),
    ),
    Way(
        "the same, float32",
        "`albert-export --format=onnx`",
        "onnx",
        _LOAD_EXPORTED,
        ("onnxruntime", *_OURS),
    ),
    Way(
        "a server, int8",
        "`albert-export --format=onnx_int8`, then [albert-serve](#a-server-albert-serve)",
        "onnx_int8",
        _SERVER,
        ("starlette", "uvicorn", "prometheus-client", "onnxruntime", *_OURS),
    ),
    Way(
        "a page on any static host, int8",
        "`albert-export --format=web`: [in the browser](#in-a-page)",
        "web",
        _PAGE.replace("SCRIPT", str(NODE_PACKAGES.parent / "page.mjs")),
        tuple(f"onnxruntime-web/dist/{name}" for name in _RUNTIME),
    ),
    Way(
        "Node, int8",
        "`albert-convert --to=huggingface --onnx`: "
        "[transformers.js](#transformersjs-optimum-sentence-transformers)",
        "huggingface",
        _NODE,
        _JS,
        "model.safetensors|model.onnx",
    ),
    Way(
        "phones, small devices, int8",
        "`albert-export --format=tflite_int8`: [LiteRT](#other-runtimes)",
        "tflite_int8",
        _LOAD_EXPORTED,
        ("ai-edge-litert", *_OURS),
    ),
    Way(
        "Intel's runtime, bfloat16 where there is",
        "`albert-export --format=onnx`: [OpenVINO](#other-runtimes)",
        "onnx",
        _OPENVINO,
        ("openvino", *_OURS),
    ),
    Way(
        "Python with TensorFlow, float32",
        "`albert-export`: [SavedModel](#tensorflow)",
        "saved_model",
        _SAVED_MODEL,
        ("tensorflow", "tensorflow-text"),
    ),
)


def export(model: str, folder: Path, formats: set[str]) -> None:
    """Writes a model in some formats."""
    import numpy as np

    import albert_tf
    from albert_tf import export
    from albert_tf.answers.classify import Classify
    from albert_tf.conversion import convert
    from albert_tf.serving import other_formats, transformers_onnx, web_page
    from albert_tf.text.vocabulary import Vocabulary

    config_name, words = MODELS[model]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(words))]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    vocabulary = Vocabulary.read(str(folder / "vocab.txt"), is_word_piece=True)
    classifier = albert_tf.AlbertForSequenceClassification(config_name, num_labels=2)
    noise = np.random.default_rng(0)  # Converters leave out biases of zero.
    for weight in classifier.weights:
        weight.assign_add(noise.normal(0, 0.01, weight.shape))
    served = export.Classifier(classifier, vocabulary, Classify(labels=("no", "yes")))
    for name in formats:
        if name == "saved_model":
            export.save(served, folder / name)
        elif name == "web":
            web_page.save(served, folder / name)
        elif name == "huggingface":
            classifier.save(folder / "model.keras")
            convert.convert(
                str(folder / "model.keras"),
                "huggingface",
                str(folder / name),
                complete=transformers_onnx.write,
            )
        else:
            other_formats.save(served, folder / name, name)


def installed_megabytes(way: Way) -> float:
    """Returns the size of the Python packages with all dependencies, or of Node's packages."""
    if way.is_javascript:
        return sum(megabytes(NODE_PACKAGES / name) for name in way.packages)
    wanted, found = list(way.packages), {}
    while wanted:
        name = re.sub(r"[-_.]+", "-", wanted.pop()).lower()
        if name not in found:
            try:
                package = importlib.metadata.distribution(name)
            except importlib.metadata.PackageNotFoundError:
                continue  # For another system.
            paths = [Path(package.locate_file(file)) for file in package.files or ()]
            found[name] = sum(path.stat().st_size for path in paths if path.is_file())
            needs = [each for each in package.requires or () if "extra ==" not in each]
            wanted += [re.match(r"[\w.-]+", each)[0] for each in needs]
    return sum(found.values()) / 1e6


def megabytes(folder: Path, leaves_out: str = "") -> float:
    """Returns the size of a folder's files, without those whose whole name matches a pattern."""
    paths = [folder] if folder.is_file() else folder.rglob("*")
    files = [path for path in paths if path.is_file() and not path.is_symlink()]
    kept = [path for path in files if not re.fullmatch(leaves_out or "$^", path.name)]
    return sum(path.stat().st_size for path in kept) / 1e6


def measure(way: Way, folder: Path, runs: int) -> list[float]:
    """Returns the medians of seconds to the first answer, milliseconds, megabytes of memory."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment["PYTHONPATH"] = str(ROOT)
    with tempfile.TemporaryDirectory() as temporary:
        if way.is_javascript:
            Path(temporary, "node_modules").symlink_to(NODE_PACKAGES)
            program = Path(temporary, "measure.mjs")
            program.write_text(way.program)
            command = ["node", str(program)]
        else:
            command = [sys.executable, "-c", _PYTHON.format(load=way.program)]
        found = []
        for _ in range(runs):
            done = subprocess.run(
                [*command, str(folder / way.format), TEXT],
                env=environment,
                cwd=temporary,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise RuntimeError(f"{way.name}: {done.stderr.strip()[-500:]}")
            found.append(json.loads(done.stdout.splitlines()[-1]))
    return [statistics.median(values) for values in zip(*found, strict=True)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table's rows."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=3, help="Processes of each way.")
    parser.add_argument("--only", default="", help="Only ways whose name contains this.")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--folder", help="Folder in which the exports are kept for later runs.")
    args = parser.parse_args(arguments)
    ways = [way for way in WAYS if args.only in way.name]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(args.folder or temporary)
        for model in args.models:
            needed = {way.format for way in ways if not (folder / model / way.format).exists()}
            if needed:
                export(model, folder / model, needed)
        print("| where it runs | command, section | start | a text | memory | disk |")
        print("| --- " * 6 + "|")
        for way in ways:
            try:
                rows: list[Any] = [measure(way, folder / m, args.runs) for m in args.models]
            except (RuntimeError, FileNotFoundError) as error:
                print(f"left out: {error}", flush=True)
                continue
            starts, ones, memories = zip(*rows, strict=True)
            sizes = [megabytes(folder / m / way.format, way.leaves_out) for m in args.models]
            disk = f"{_pair(sizes)} + {installed_megabytes(way):,.0f} MB"
            cells = [f"{_pair(starts)} s", f"{_pair(ones)} ms", f"{_pair(memories)} MB", disk]
            print(f"| {' | '.join([way.name, way.section, *cells])} |", flush=True)


def _pair(numbers: Sequence[float]) -> str:
    return " / ".join(f"{x:,.0f}" if x >= 10 else f"{x:.1f}" for x in numbers)


if __name__ == "__main__":
    main()
