"""Makes a checkpoint of PL-BERT's trainer, which StyleTTS2 reads, of a .safetensors file, and back.

    python examples/plbert_checkpoint.py step_1000000.t7 plbert.safetensors
    python examples/plbert_checkpoint.py run/step_1010000.safetensors step_1010000.t7

The first command makes an --init_checkpoint for examples/phoneme_words.py, the second converts its
result; an encoder's model.safetensors of transformers or albert-convert works, too. Needs torch.
"""

from __future__ import annotations

import argparse
import pathlib

import torch
from safetensors.torch import load_file, save

# The parameters in the order in which the optimizer's state numbers them.
ORDER = (
    *("word_embeddings", "position_embeddings", "token_type_embeddings", "embeddings.LayerNorm"),
    *("hidden_mapping_in", "full_layer", ".query", ".key", ".value", ".dense", ".LayerNorm"),
    *(".ffn.", ".ffn_output.", ".pooler.", "mask_predictor", "word_predictor"),
)
MOMENTS = ("exp_avg", "exp_avg_sq")
# Settings of transformers' AdamW in PL-BERT's trainer; torch's AdamW reads them, too.
ADAM = {"lr": 1e-4, "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.0, "correct_bias": True}
# Not weights: transformers once stored these, and StyleTTS2 expects the first.
POSITIONS, *BUFFERS = (
    f"module.encoder.embeddings.{name}" for name in ("position_ids", "token_type_ids")
)


def place(name: str) -> tuple[int, bool]:
    """Returns the sort key of a parameter."""
    return next(i for i, part in enumerate(ORDER) if part in name), name.endswith("bias")


def read(path: str) -> dict[str, torch.Tensor]:
    """Returns a checkpoint's weights by name, with /exp_avg and /exp_avg_sq, and its step."""
    checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    net = checkpoint.get("net", {})
    if not any(name.startswith("module.encoder.") for name in net):
        raise SystemExit(f"{path}: expected `net` with module.encoder.…, got {list(net)[:3]}")
    net = {name: x for name, x in net.items() if name not in (POSITIONS, *BUFFERS)}
    tensors = {**net, "step": torch.tensor(checkpoint.get("step", 0))}
    moments = checkpoint.get("optimizer", {}).get("state", {})
    for i, name in enumerate(net):
        if i in moments:  # The pooler, on which no loss depends, has none.
            tensors |= {f"{name}/{moment}": moments[i][moment] for moment in MOMENTS}
    return {name: x.contiguous() for name, x in tensors.items()}


def write(tensors: dict[str, torch.Tensor], path: str) -> None:
    """Writes tensors as `read` returns them, or an encoder with transformers' names."""
    step = int(tensors.pop("step", 0))
    if not any(name.startswith("module.") for name in tensors):
        # Other heads are dropped.
        named = {name.removeprefix("albert."): x for name, x in tensors.items()}
        parts = ("embeddings.", "encoder.", "pooler.")
        tensors = {f"module.encoder.{n}": x for n, x in named.items() if n.startswith(parts)}
    names = sorted((name for name in tensors if "/" not in name), key=place)
    state = {
        i: {"step": step, **{moment: tensors[f"{name}/{moment}"] for moment in MOMENTS}}
        for i, name in enumerate(names)
        if f"{name}/{MOMENTS[0]}" in tensors
    }
    net = {name: tensors[name] for name in names}
    length = len(net["module.encoder.embeddings.position_embeddings.weight"])
    net[POSITIONS] = torch.arange(length)[None]
    group = {**ADAM, "params": list(range(len(names)))}
    optimizer = {"state": state, "param_groups": [group]}
    torch.save({"net": net, "step": step, "optimizer": optimizer}, path)


def main() -> None:
    """Converts, one way or the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", help="A file that ends in .t7 or .safetensors.")
    parser.add_argument("target", help="The other one.")
    args = parser.parse_args()
    if args.source.endswith(".safetensors"):
        write(load_file(args.source), args.target)
    else:
        pathlib.Path(args.target).write_bytes(save(read(args.source)))


if __name__ == "__main__":
    main()
