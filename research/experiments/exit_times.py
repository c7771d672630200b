"""What a layer costs that may be the last: ONNX's `Loop`, left where an answer has settled.

    python -m research.experiments.exit_times --checkpoint albert_small --folder faster

For each task, models of all layers and of fewer, which benchmarks/faster.py has exported in the
folder, are compared with a loop that is left after as many, in turns: CPU time of one core, a text
at a time. The last column is one of --layer_times of early_exit.py.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from typing import Any

import numpy as np

from albert_tf.console import tensorflow_logs
from research.experiments.early_exit import faster, read

# Above any confidence: it is computed, and never ends the loop.
NEVER = 2.0
_TEXTS, _TURNS = 20, 5


def leaving(classifier: Any, confidence: float = NEVER) -> Any:
    """Returns a function of features and `layers`, the most layers, to logits `<float32>[B, C]`.

    It applies the one block until all texts' answers are as sure as `confidence`. The classifier
    has a single block.
    """
    import tensorflow as tf

    from albert_tf.model import layers as model_layers

    albert, width = classifier.albert, classifier.config.hidden_size
    (attention,), (ffn,) = albert.encoder.attention, albert.encoder.ffn

    def find(**given: Any) -> dict[str, Any]:
        scores = model_layers.masked_scores(given["input_mask"])
        of_attention, of_ffn = attention.read(), ffn.read()

        def body(number: Any, x: Any, _: Any) -> tuple[Any, Any, Any]:
            x = ffn(attention(x, of_attention, scores), of_ffn)
            logits = classifier.classifier(albert.pooler(x[:, 0]))
            return number + 1, tf.ensure_shape(x, (None, None, width)), logits

        def goes_on(number: Any, _: Any, logits: Any) -> Any:
            settled = tf.reduce_max(tf.nn.softmax(logits), axis=-1) >= confidence
            return (number < given["layers"]) & ~tf.reduce_all(settled)

        x = albert.encoder.to_hidden_size(
            albert.embeddings(given["input_ids"], given["segment_ids"])
        )
        x = tf.ensure_shape(x, (None, None, width))
        nothing = tf.zeros((tf.shape(x)[0], classifier.num_labels))
        return {"logits": tf.while_loop(goes_on, body, (0, x, nothing))[2]}

    batch = ("input_ids", "input_mask", "segment_ids")
    specs = {name: tf.TensorSpec((None, None), tf.int32, name) for name in batch}
    specs["layers"] = tf.TensorSpec((), tf.int32, "layers")
    return tf.function(find, autograph=False).get_concrete_function(**specs)


def measure(plan: faster.Plan, task: faster.Task, file_format: str) -> list[str]:
    """Returns a row for each number of layers."""
    import albert_tf
    from albert_tf.serving import exported_files, other_formats

    features, _ = read(plan, task, "dev")
    counts = features["input_mask"].sum(axis=1)
    texts = [
        {name: values[i : i + 1, : counts[i]] for name, values in features.items()}
        for i in range(0, len(counts), len(counts) // _TEXTS)
    ]
    pieces = np.mean([text["input_ids"].size for text in texts])

    whole, *_ = folders = [plan.folder / faster.Run(task, 0, d).name for d in plan.depths]
    classifier = albert_tf.AlbertForSequenceClassification.from_weights(whole)
    load = exported_files.runtime_loader(True)
    loop = load(other_formats.to_onnx(leaving(classifier), file_format.endswith("int8")))
    rows = []
    for depth, folder in zip(plan.depths, folders, strict=True):
        (path,) = (folder / file_format).glob("*.onnx")
        layers = {"layers": np.array(depth, np.int32)}
        ways = ((load(path.read_bytes()).run, {}), (loop.run, layers))
        times: list[list[float]] = [[], []]
        # The first turn has one-time costs of lengths.
        for turn, (run, more) in itertools.product(range(1 + _TURNS), ways):
            started = time.process_time()
            for text in texts:
                run({**text, **more})
            if turn:
                times[run is loop.run].append(1e3 * (time.process_time() - started) / len(texts))
        plain, looped = map(np.median, times)
        cells = (f"{pieces:.0f}", f"{plain:.1f}", f"{looped:.1f}", f"{looped / plain:.2f}")
        rows.append(f"| {task.name}, {depth} | {file_format} | {' | '.join(cells)} |")
    return rows


def main() -> None:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    faster.add_flags(parser)
    plan, tasks = faster.planned(parser.parse_args())
    # onnxruntime would wait in the threads of other cores, which counts as CPU time.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    tensorflow_logs.import_tensorflow()
    print("| task, layers | | pieces | fewer layers, ms | loop, ms | ratio |")
    print("| --- " * 6 + "|", flush=True)
    for task, file_format in itertools.product(tasks, faster.FORMATS):
        print("\n".join(measure(plan, task, file_format)), flush=True)


if __name__ == "__main__":
    main()
