"""Compares ways to store a classifier's weights in 8 bits: points lost, time and size.

    python research/benchmarks/eight_bits.py --model sentiment/model.ckpt-best \
        --eval_file dev.tsv --text_column sentence

Each way stores the same model in a file that load_exported opens. The table has its score on all
texts, the time of single texts (the ways take turns), and its size. `albert-export` writes three.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import base_model
import numpy as np

# Number of texts that are timed, and of warm-up texts before them.
_TIMED, _WARM = 100, 10
FORMATS = ("onnx", "onnx_int8", "tflite_int8")


def dynamic(source: str, target: str, **options: Any) -> None:
    """Weights and activations in 8 bits; activations are scaled by the largest in the batch."""
    from onnxruntime import quantization

    quantization.quantize_dynamic(
        source, target, weight_type=quantization.QuantType.QInt8, **options
    )


def weights_only(source: str, target: str, block: int) -> None:
    """Weights in 8 bits by block; activations too, by block of a row, during the product."""
    import onnx
    from onnxruntime.quantization import matmul_nbits_quantizer

    config = matmul_nbits_quantizer.DefaultWeightOnlyQuantConfig(
        block_size=block, is_symmetric=True, accuracy_level=4, bits=8
    )
    quantizer = matmul_nbits_quantizer.MatMulNBitsQuantizer(onnx.load(source), algo_config=config)
    quantizer.process()
    quantizer.model.save_model_to_file(target, False)


# Ways that albert-export lacks -> a function that makes their file from the one in float32.
OTHERS: dict[str, Callable[[str, str], None]] = {
    "dynamic, one scale a matrix, 7 bits": lambda *paths: dynamic(*paths, reduce_range=True),
    "dynamic, one scale a column, 8 bits": lambda *paths: dynamic(*paths, per_channel=True),
    "weights only, blocks of 32": lambda *paths: weights_only(*paths, 32),
    "weights only, blocks of 128": lambda *paths: weights_only(*paths, 128),
}


def make(arguments: dict[str, Any], folder: Path) -> tuple[dict[str, Path], Any]:
    """Writes a directory for each way; returns these, and a function that scores predictions."""
    from albert_tf.serving import scores, served_tasks
    from albert_tf.serving.settings import ExportSettings

    settings = ExportSettings.of(task="classify", export_dir=str(folder / "none"), **arguments)
    stored = settings.stored(settings.model)
    served = served_tasks.load_served("classify", stored, settings.options())
    base_model.export(served, str(folder), FORMATS)
    made = {name: folder / name for name in FORMATS}
    for number, (name, write) in enumerate(OTHERS.items()):
        # The metadata of onnx_int8 make load_exported run texts one by one.
        made[name] = folder / str(number)
        shutil.copytree(folder / "onnx_int8", made[name])
        write(str(folder / "onnx" / "model.onnx"), str(made[name] / "model_int8.onnx"))
    return made, scores.Evaluation.read(served.kind, settings)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="A fine-tuned classifier.")
    parser.add_argument("--eval_file", required=True, help="Its labelled texts.")
    for name in ("text_column", "text_pair_column", "label_column"):
        parser.add_argument(f"--{name}")
    given = {name: value for name, value in vars(parser.parse_args(arguments)).items() if value}
    from albert_tf import load_exported

    with tempfile.TemporaryDirectory() as folder:
        made, evaluation = make(given, Path(folder))
        predictors = {name: load_exported(path) for name, path in made.items()}
        rows = [evaluation.task.texts(example) for example in evaluation.examples]
        rows = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))[:_TIMED]]
        seconds: dict[str, list[float]] = {name: [] for name in made}
        for row in (*rows[:_WARM], *rows):
            for name, predictor in predictors.items():
                start = time.perf_counter()
                predictor.outputs([row])
                seconds[name].append(time.perf_counter() - start)
        key = evaluation.task.key_metric
        found = {name: evaluation(each.outputs)[key] for name, each in predictors.items()}
        print(f"| | {key} | points lost | ms a text | MB |\n| --- | --- | --- | --- | --- |")
        for name, score in found.items():
            lost = 100 * (found["onnx"] - score)
            size = max(file.stat().st_size for file in made[name].glob("model*")) / 1e6
            time_of = 1000 * statistics.median(seconds[name][-len(rows) :])
            print(f"| {name} | {100 * score:.1f} | {lost:.1f} | {time_of:.1f} | {size:.1f} |")


if __name__ == "__main__":
    main()
