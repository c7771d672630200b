"""Loads albert-serve, with ONNX files and a SavedModel of one classifier, and restarts it.

    make bench-server  or, with the peers and the extra serve,  python research/benchmarks/server.py

All are served by the same program, one after the other. Clients keep their connections, each asks
for one text of 4 to 64 pieces at a time, and compares its answer with that of the model alone. In
the second half of the last load the server gets SIGTERM, and another starts on the same port: a
client that is told that its connection ends connects again once /readyz reports ready.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import base_model
from serving import percentile
from workers import ROOT, in_process

CONFIG = {
    "embedding_size": 128,
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_attention_heads": 2,
    "num_hidden_layers": 4,
    "vocab_size": 6000,
}
FORMATS = ("onnx", "onnx_int8", "saved_model")
PATH = "/v1/models/{}:predict"
# Float32 on one machine, in batches of another size. In 8 bits rows are computed one by one.
TOLERANCE = 1e-5


def export(folder: str, config_name: str, formats: Sequence[str] = FORMATS) -> None:
    """Writes a classifier with random weights in some formats; by default of CONFIG."""
    import albert_tf
    from albert_tf import export as exports
    from albert_tf.answers.classify import Classify
    from albert_tf.text.vocabulary import Vocabulary

    config = albert_tf.AlbertConfig(**CONFIG)
    if config_name:
        config = albert_tf.AlbertConfig.from_json_file(config_name)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words += [f"w{i}" for i in range(config.vocab_size - len(words))]
    Path(folder, "vocab.txt").write_text("\n".join(words))
    model = base_model.with_noise(
        albert_tf.AlbertForSequenceClassification(config, num_labels=3), 0.05
    )
    vocabulary = Vocabulary.read(str(Path(folder, "vocab.txt")), is_word_piece=True)
    kind = Classify(labels=("a", "b", "c"), max_seq_length=config.max_position_embeddings)
    served = exports.Classifier(model, vocabulary, kind)
    base_model.export(served, folder, formats)


def expected(directory: str, texts: Sequence[str]) -> list[list[float]]:
    """Returns the probabilities of each text, asked alone."""
    import albert_tf

    predictor = albert_tf.load_exported(directory)
    return [[*predictor([text])[0]["probabilities"].values()] for text in texts]


def make_texts(count: int, seed: int = 0) -> list[str]:
    """Returns texts, the short ones more frequent."""
    rng = random.Random(seed)
    lengths = [int(4 * 16 ** rng.random()) for _ in range(count)]
    return [" ".join(f"w{rng.randrange(5995)}" for _ in range(length)) for length in lengths]


def free_port() -> int:
    """Returns a port on which nothing listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextlib.contextmanager
def serve(directory: str, port: int, *flags: str, python: str = sys.executable) -> Iterator:
    """Starts a server, and yields it once it is ready; ends it by SIGTERM if it still runs."""
    command = [python, "-m", "albert_tf.serving.server", f"--model={directory}", f"--port={port}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_ENABLE_ONEDNN_OPTS": "1"}
    command += ["--noaccess_log", *flags]
    # Its log would be mixed into the rows of the table.
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            wait_until_ready(process, port)
            yield process
        finally:
            process.terminate()


def wait_until_ready(process: subprocess.Popen, port: int) -> None:
    """Waits for a server."""
    while process.poll() is None:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5).close()
            return
        time.sleep(0.05)
    raise RuntimeError(f"the server ended with {process.returncode}")


class Load:
    """Clients that send requests for some time.

    Attributes:
      seconds: The time of each answer.
      wrong: Answers that differ from those for the text alone.
      lost: Requests without an answer.
      refused: Connections on which /readyz was not 200, or that no server accepted.
    """

    def __init__(self, name: str, texts: Sequence[str], right: Sequence[Sequence[float]]) -> None:
        self.path, self.texts, self.right = PATH.format(name), texts, right
        self.seconds: list[float] = []
        self.wrong = self.lost = self.refused = 0

    async def run(self, port: int, clients: int, seconds: float) -> None:
        """Sends requests for some seconds."""
        end = time.perf_counter() + seconds
        await asyncio.gather(*(self._client(port, seed, end) for seed in range(clients)))

    async def _client(self, port: int, seed: int, end: float) -> None:
        rng, connection = random.Random(seed), None
        while time.perf_counter() < end:
            if connection is None:
                connection = await self._connect(port)
            if connection is None:
                self.refused += 1
                await asyncio.sleep(0.05)
                continue
            place, start = rng.randrange(len(self.texts)), time.perf_counter()
            try:
                body = json.dumps({"instances": [self.texts[place]]}).encode()
                status, answer, ends = await self._ask(connection, "POST", self.path, body)
            except (OSError, asyncio.IncompleteReadError):
                self.lost += 1
                connection = None
                continue
            self.seconds.append(time.perf_counter() - start)
            found = json.loads(answer)["predictions"][0]["probabilities"] if status == 200 else []
            near = len(found) == len(self.right[place]) and all(
                abs(a - b) <= TOLERANCE for a, b in zip(found, self.right[place], strict=True)
            )
            self.wrong += not near
            if ends:
                connection[1].close()
                connection = None
        if connection:
            connection[1].close()

    async def _connect(self, port: int):
        """Returns a connection to a server that is ready, as a load balancer does, or None."""
        try:
            connection = await asyncio.open_connection("127.0.0.1", port)
            status, _, ends = await self._ask(connection, "GET", "/readyz")
        except (OSError, asyncio.IncompleteReadError):
            return None
        if status == 200 and not ends:
            return connection
        connection[1].close()
        return None

    async def _ask(
        self, connection, method: str, path: str, body: bytes = b""
    ) -> tuple[int, bytes, bool]:
        """Returns an answer's status and body, and whether the server ends the connection."""
        reader, writer = connection
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        members = dict(line.split(": ", 1) for line in lines[1:] if line)
        content = await reader.readexactly(int(members["content-length"]))
        return int(lines[0].split()[1]), content, members.get("connection") == "close"


def of_process(port: int, name: str) -> float:
    """Returns a metric that a server reports of its process."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    (value,) = (line.split()[1] for line in lines if line.startswith(f"process_{name} "))
    return float(value)


def measure(directory: str, clients: int, seconds: float, restart: bool) -> Load:
    """Loads a server, restarts it if wanted, and prints a row."""
    texts = make_texts(200)
    backend = "tensorflow"
    right = in_process("server.expected", directory, texts, backend=backend)
    load, port = Load(Path(directory).name, texts, right), free_port()
    with contextlib.ExitStack() as servers:
        first = servers.enter_context(serve(directory, port))
        asyncio.run(load.run(port, clients, min(2.0, seconds)))  # Warm-up.
        load.seconds.clear()
        cpu = of_process(port, "cpu_seconds_total")
        if restart:
            ended = asyncio.run(_restarted(load, servers, first, directory, port, clients, seconds))
            assert ended == 0, ended
        else:
            asyncio.run(load.run(port, clients, seconds))
        cpu = of_process(port, "cpu_seconds_total") - cpu  # After a restart it is another process.
        memory = of_process(port, "resident_memory_bytes") / 1e6
    p50, p99 = (1e3 * percentile(load.seconds, share) for share in (0.5, 0.99))
    what = f"{Path(directory).name}{', restarted' if restart else ''}"
    per_request = "" if restart else f"{1e3 * cpu / len(load.seconds):.2f}"
    print(
        f"| {what} | {clients} | {len(load.seconds) / seconds:,.0f} | {p50:.1f} | {p99:.1f} "
        f"| {per_request} | {memory:.0f} | {load.wrong} | {load.lost} |",
        flush=True,
    )
    return load


async def _restarted(
    load: Load,
    servers: contextlib.ExitStack,
    first: subprocess.Popen,
    directory: str,
    port: int,
    clients: int,
    seconds: float,
) -> int:
    """Ends the server amid the load, starts another, and returns the first one's exit status."""
    running = asyncio.create_task(load.run(port, clients, seconds))
    await asyncio.sleep(seconds / 2)
    first.send_signal(signal.SIGTERM)
    ended = await asyncio.to_thread(first.wait)
    await asyncio.to_thread(servers.enter_context, serve(directory, port))
    await running
    return ended


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--formats", nargs="+", default=FORMATS, choices=FORMATS)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--seconds", type=float, default=10.0, help="Time of each row.")
    parser.add_argument("--config", default="", help="Such as albert_base_v2; see CONFIG.")
    parser.add_argument("--folder", help="Where the exports are kept for later runs.")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(args.folder or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / FORMATS[-1]).exists():
            in_process("server.export", str(folder), args.config, backend="tensorflow")
        print("| model | clients | requests/s | p50, ms | p99, ms | CPU ms | MB | wrong | lost |")
        print("| --- " * 9 + "|", flush=True)
        for name in args.formats:
            for clients in args.clients:
                measure(str(folder / name), clients, args.seconds, restart=False)
            measure(str(folder / name), args.clients[-1], args.seconds, restart=True)


if __name__ == "__main__":
    main()
