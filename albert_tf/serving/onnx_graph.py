"""Layer norms of an ONNX graph as one operation each, which tf2onnx writes as eight."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from albert_tf.config import LAYER_NORM_EPSILON


def fuse_layer_norms(graph: Any) -> int:
    """Computes layer norms by ONNX's operation of that name, but for adding beta.

    Args:
      graph: An `onnx.GraphProto`, changed in place. So are the bodies of its loops.

    Returns:
      How many there were.
    """
    from onnx import helper

    inner = [each.g for node in graph.node for each in node.attribute if each.HasField("g")]
    count = sum(fuse_layer_norms(body) for body in inner)
    made = {name: node for node in graph.node for name in node.output}
    for i, node in enumerate(graph.node):
        found = _inputs(node, made)
        if found:
            fused = helper.make_node(
                "LayerNormalization", found, node.output, axis=-1, epsilon=LAYER_NORM_EPSILON
            )
            graph.node[i].CopyFrom(fused)
            count += 1
    _remove_unused(graph)
    return count


def _inputs(node: Any, made: dict[str, Any]) -> tuple[str, str] | None:
    """Returns x and gamma of `(x - mean) * (1 / deviation * gamma)` as in functional.layer_norm."""
    if node.op_type != "Mul":
        return None
    for centred, scale in (node.input, reversed(node.input)):
        if _operation(centred, made) == "Sub" and _operation(scale, made) == "Mul":
            inverse, gamma = made[scale].input
            if _operation(inverse, made) == "Reciprocal":
                return made[centred].input[0], gamma
    return None


def _operation(name: str, made: dict[str, Any]) -> str:
    return made[name].op_type if name in made else ""


def _remove_unused(graph: Any) -> None:
    """Removes what nobody takes: onnxruntime would compute it, or warn of it."""
    wanted, kept = {each.name for each in graph.output}, []
    for node in reversed(graph.node):  # Users come after what they use.
        if wanted & set(node.output):
            kept.append(node)
            wanted.update(_taken(node))
    weights = [each for each in graph.initializer if each.name in wanted]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(reversed(kept))
    graph.initializer.extend(weights)


def _taken(node: Any) -> Iterator[str]:
    """Yields the names of all that a node takes, also within its loops."""
    yield from node.input
    for attribute in node.attribute:
        yield from (each.name for each in attribute.g.output)
        for inner in attribute.g.node:
            yield from _taken(inner)
