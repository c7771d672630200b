"""Measures how fast sentences become vectors on a CPU, how much memory that takes, and 8 bits.

    make bench-embedding ARGS='--texts sentences.txt'

An ALBERT-base v2 with random weights, its mean vectors of length 1, as albert_tf exports it, and as
sentence-transformers, fastembed and optimum open the folder that albert-convert writes. Each has
its own process. All are alive together, and embed the same sentences in turns. A table of vectors
without an encoder is the other end of the scale.
"""

from __future__ import annotations

import argparse
import functools
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import base_model
import numpy as np
from base_model import CONFIG_FILE, ROOT
from workers import Worker, in_process, that_answer

SPM = ROOT / "tests" / "golden" / "spm" / "en_small.model"
FORMATS = ("onnx", "onnx_int8", "saved_model")
THEIRS = "sentence_transformers"
MAX_LENGTH = 128
# Sentences per request, whatever the batch size; the times of requests are compared.
AT_ONCE = 64

# (texts, batch size) -> vectors.
Embed = Callable[[list[str], int], np.ndarray]


def prepare(folder: str, config_file: str) -> None:
    """Writes the exports, and the folder of sentence-transformers with ONNX files."""
    import dataclasses

    import albert_tf
    from albert_tf import export
    from albert_tf.answers.embed import Embed as Kind
    from albert_tf.conversion.convert import convert
    from albert_tf.serving import transformers_onnx
    from albert_tf.storage.run_record import RunRecord, TaskRecord
    from albert_tf.text.vocabulary import Vocabulary

    vocabulary = Vocabulary.read(str(SPM), is_word_piece=False)
    size = vocabulary.tokenizer.vocab_size
    config = dataclasses.replace(
        albert_tf.AlbertConfig.from_json_file(config_file), vocab_size=size
    )
    model = base_model.with_noise(albert_tf.AlbertForEmbedding(config, normalize=True), 0.02)
    kind = Kind(normalize=True, max_seq_length=MAX_LENGTH)
    served = export.Embedder(model, vocabulary, kind)
    base_model.export(served, folder, FORMATS)
    ours = Path(folder, "ours")
    ours.mkdir()
    model.save(ours / "model.keras")
    RunRecord({}, {}, task=TaskRecord(kind.task_name, kind.to_json())).write(str(ours))
    given = {"spm_model_file": str(SPM), "complete": transformers_onnx.write}
    convert(str(ours), "huggingface", str(Path(folder, THEIRS)), **given)


def ours(folder: str, name: str) -> Embed:
    """An export of this project's, as its users load it."""
    import albert_tf

    model = albert_tf.load_exported(Path(folder, name))

    def embed(texts: list[str], batch: int) -> np.ndarray:
        # It batches texts by itself; for batches of 1 they are passed one by one.
        parts = [[text] for text in texts] if batch == 1 else [texts]
        return np.concatenate([model.embed(part) for part in parts])

    return embed


def theirs(folder: str, **options: Any) -> Embed:
    """sentence-transformers."""
    import sentence_transformers

    is_compiled = options.pop("compiled", False)
    model = sentence_transformers.SentenceTransformer(str(Path(folder, THEIRS)), **options)
    if is_compiled:
        import torch

        model[0].auto_model = torch.compile(model[0].auto_model, dynamic=True)
    return lambda texts, batch: model.encode(texts, batch_size=batch)


def fastembed(folder: str) -> Embed:
    """fastembed, which pools and normalises the output of the ONNX file."""
    import fastembed
    from fastembed.common.model_description import ModelSource, PoolingType

    fastembed.TextEmbedding.add_custom_model(
        *("local/albert", PoolingType.MEAN, True, ModelSource(url="https://localhost/none"), 768),
        model_file="onnx/model.onnx",
    )
    model = fastembed.TextEmbedding("local/albert", specific_model_path=str(Path(folder, THEIRS)))

    def embed(texts: list[str], batch: int) -> np.ndarray:
        # It batches texts in the given order; the others sort them by length first.
        order = np.argsort([*map(len, texts)])
        found = np.stack([*model.embed([texts[i] for i in order], batch_size=batch)])
        return found[np.argsort(order)]

    return embed


def table(folder: str) -> Embed:
    """The mean of the pieces' vectors from a lookup table, without an encoder."""
    import sentence_transformers
    import tokenizers
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    tokenizer = tokenizers.Tokenizer.from_file(str(Path(folder, THEIRS, "tokenizer.json")))
    tokenizer.no_padding()
    module = StaticEmbedding(tokenizer, embedding_dim=256)
    model = sentence_transformers.SentenceTransformer(modules=[module])
    return lambda texts, batch: model.encode(texts, batch_size=batch)


CONTESTANTS: dict[str, Callable[[str], Embed]] = {
    "albert_tf ONNX": functools.partial(ours, name="onnx"),
    "albert_tf ONNX, int8": functools.partial(ours, name="onnx_int8"),
    "albert_tf SavedModel": functools.partial(ours, name="saved_model"),
    "sentence-transformers": theirs,
    "sentence-transformers, torch.compile": functools.partial(theirs, compiled=True),
    "sentence-transformers, this ONNX": functools.partial(theirs, backend="onnx"),
    "sentence-transformers, its own ONNX": functools.partial(
        theirs, backend="onnx", model_kwargs={"export": True}
    ),
    "fastembed": fastembed,
    "a table without an encoder": table,
}


def answers(name: str, folder: str, texts: str) -> Callable[..., dict[str, Any]]:
    """Returns a function that embeds some of the texts, and measures time and memory."""
    lines = Path(texts).read_text(encoding="utf-8").splitlines()
    embed = None

    def respond(first: int, count: int, batch: int) -> dict[str, Any]:
        nonlocal embed
        # Not loaded before the first request, so that its answer reports errors.
        embed = embed or CONTESTANTS[name](folder)
        start = time.perf_counter()
        vectors = embed(lines[first : first + count], batch)
        seconds = time.perf_counter() - start
        status = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
        megabytes = int(status) / 1024
        return {"seconds": seconds, "megabytes": megabytes, "vectors": vectors.tolist()}

    return respond


class Contestant(Worker):
    """A contestant, with its times, vectors, and peak memory."""

    def __init__(self, name: str, folder: str, texts: str) -> None:
        super().__init__(name, "embedding.answers", name, folder, texts)
        self.seconds: list[float] = []
        self.vectors: list[list[float]] = []
        self.megabytes = 0.0

    def embed(self, **request: int) -> None:
        """Embeds texts, and records the measurements."""
        answer = self.ask(**request)
        self.seconds.append(answer["seconds"])
        self.vectors += answer["vectors"]
        self.megabytes = answer["megabytes"]


def measure(workers: Sequence[Contestant], count: int, batch: int) -> None:
    """Has all embed the same texts in turns, and prints a row for each."""
    for worker in workers:
        worker.embed(first=0, count=AT_ONCE, batch=batch)  # Warm-up.
        worker.seconds, worker.vectors = [], []
    for first in range(0, count, AT_ONCE):
        for worker in random.Random(first).sample(workers, len(workers)):
            worker.embed(first=first, count=AT_ONCE, batch=batch)
    right = np.array(workers[0].vectors)
    print(f"\nbatches of {batch}: {count:,} texts")
    print("| | texts/s | peak MB | least cosine | mean cosine |")
    print("| --- | --- | --- | --- | --- |")
    for worker in workers:
        found = np.array(worker.vectors)
        alike = "| |"
        if found.shape == right.shape:
            lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(right, axis=1)
            cosines = (found * right).sum(axis=1) / lengths
            alike = f"{cosines.min():.4f} | {cosines.mean():.4f} |"
        # The median, since other programs may use the machine at times.
        rate = AT_ONCE / statistics.median(worker.seconds)
        row = f"| {worker.name} | {rate:.1f} | {worker.megabytes:.0f} | {alike}"
        print(row, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--texts", required=True, help="A file with a sentence on each line.")
    parser.add_argument("--count", type=int, default=2000, help="How many sentences are read.")
    parser.add_argument("--batches", type=int, nargs="+", default=(1, 32))
    parser.add_argument("--config", default=str(CONFIG_FILE))
    parser.add_argument("--only", default="", help="Only contestants whose name contains this.")
    parser.add_argument("--folder", help="Where the exports are kept for later runs.")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(args.folder or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / THEIRS).exists():
            in_process("embedding.prepare", str(folder), args.config, backend="tensorflow")
        chosen = (name for name in CONTESTANTS if args.only in name)
        made = (Contestant(name, str(folder), args.texts) for name in chosen)
        workers = that_answer(made, first=0, count=1, batch=args.batches[0])
        try:
            for batch in args.batches:
                measure(workers, args.count // AT_ONCE * AT_ONCE, batch)
        finally:
            for worker in workers:
                worker.close()


if __name__ == "__main__":
    main()
