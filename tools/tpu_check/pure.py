"""Turns a traced function with variables into a function of their values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class PureFunction:
    """A function that takes and returns the values of its variables.

    Attributes:
      function: Maps arguments, then the variables' values, to results, then the new values.
      arguments: Their shapes and dtypes.
      aliases: By argument, the result with the variable's new value, for variables that change.
    """

    function: Callable[..., list[tf.Tensor]]
    arguments: list[tf.TensorSpec]
    aliases: Mapping[int, int]


def without_variables(traced: Any) -> PureFunction:
    """Turns a function's variables into arguments and results, all that the compiler accepts.

    The operations are recreated in the order they were traced in, which is program order; those on
    a variable become the equivalent on its current value.

    Args:
      traced: A ConcreteFunction that uses its variables only at top level, not in branches, loops
        or inner functions.

    Raises:
      NotImplementedError: If a variable is used in any other way.
    """
    by_handle = {id(variable.handle): variable for variable in traced.graph.variables}
    constants, variables = {}, {}
    for outer, inner in traced.graph.captures:
        if inner.dtype == tf.resource:
            variables[inner.name] = by_handle[id(outer)]
        else:
            constants[inner.name] = outer
    inputs = [x for x in traced.inputs if x.name not in variables and x.name not in constants]
    written = {
        op.inputs[0].name
        for op in traced.graph.get_operations()
        if op.type.startswith("Assign") and op.type.endswith("VariableOp")
    }

    def function(*values: tf.Tensor) -> list[tf.Tensor]:
        known = dict(zip([x.name for x in inputs], values, strict=False))
        known |= {name: tf.constant(value) for name, value in constants.items()}
        state = dict(zip(variables, values[len(inputs) :], strict=True))
        _replay(traced.graph, known, state)
        return [known[output.name] for output in traced.outputs] + list(state.values())

    first_result, first_argument = len(traced.outputs), len(inputs)
    return PureFunction(
        function,
        [tf.TensorSpec(x.shape, x.dtype) for x in (*inputs, *variables.values())],
        {
            first_argument + i: first_result + i
            for i, name in enumerate(variables)
            if name in written
        },
    )


def _replay(graph: Any, known: dict[str, tf.Tensor], state: dict[str, tf.Tensor]) -> None:
    """Recreates a graph's operations; adds their results to known, and updates state."""
    target = tf.compat.v1.get_default_graph()
    for inner in graph._functions.values():
        target._add_function_recursive(inner)

    def make(op: tf.Operation) -> None:
        if op.outputs and op.outputs[0].name in known:
            return
        # A loop with a gradient takes lists that the graph creates only after it.
        for x in op.inputs:
            if x.dtype != tf.resource:
                make(x.op)
        handles = [x.name for x in op.inputs if x.dtype == tf.resource]
        if handles:
            results = _on_variable(op, state, known, handles)
        else:
            results = target.create_op(
                op.type,
                [known[x.name] for x in op.inputs],
                [x.dtype for x in op.outputs],
                attrs={name: op.node_def.attr[name] for name in op.node_def.attr},
                name=op.name,
                op_def=op.op_def,
                compute_device=False,
            ).outputs
        known.update(zip([x.name for x in op.outputs], results, strict=True))

    for op in graph.get_operations():
        if op.type != "Placeholder":
            make(op)


def _on_variable(
    op: tf.Operation, state: dict[str, tf.Tensor], known: dict[str, tf.Tensor], handles: list[str]
) -> list[tf.Tensor]:
    """Returns the results of an operation on a variable, and updates its value."""
    name = handles[0]
    operands = [known[x.name] for x in op.inputs if x.dtype != tf.resource]
    if len(handles) > 1 or name not in state:
        raise NotImplementedError(f"{op.type} ({op.name}) on more than one variable")
    if op.type == "ReadVariableOp":
        return [state[name]]
    if op.type == "ResourceGather":
        return [tf.gather(state[name], *operands, batch_dims=op.get_attr("batch_dims"))]
    if op.type == "VariableShape":
        return [tf.shape(state[name], op.get_attr("out_type"))]
    assigned = {
        "AssignVariableOp": lambda old, new: new,
        "AssignAddVariableOp": tf.add,
        "AssignSubVariableOp": tf.subtract,
    }
    if op.type not in assigned:
        raise NotImplementedError(f"{op.type} ({op.name}) on a variable")
    state[name] = assigned[op.type](state[name], *operands)
    return []
