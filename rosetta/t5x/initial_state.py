"""Fast compilation of the initialisation of a train state (see checkpoint.Initializer).

jax.jit makes one program of it, which XLA compiles for T5-small about as long as the training step.
Here the initialisation is split into one program for each array. The arrays of equal layers differ
only in their random keys, so that they share one compiled program.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
from jax.extend.core import Literal
from jax.sharding import NamedSharding, PartitionSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

KEY_PRIMITIVE = "random_fold_in"  # the operation that derives a parameter's own key


@dataclass(frozen=True, eq=False)
class ArrayProgram:
    """The part of a jaxpr that computes one array.

    Attributes:
      jaxpr: the whole jaxpr.
      equations: the equations that compute the array, in order.
      inputs: the variables that these equations read and do not compute.
      result: the variable (or literal) of the array.
    """

    jaxpr: Any
    equations: tuple[Any, ...]
    inputs: tuple[Any, ...]
    result: Any

    def signature(self) -> tuple[object, ...]:
        """Return a value that is equal for two programs that compute the same from equal inputs."""
        names: dict[Any, object] = {
            variable: ("input", index, str(variable.aval))
            for index, variable in enumerate(self.inputs)
        }

        def name(atom: Any) -> object:
            if isinstance(atom, Literal):
                return ("literal", str(atom.aval), repr(atom.val))
            return names[atom]

        lines: list[tuple[object, ...]] = []
        for equation in self.equations:
            reads = tuple(name(atom) for atom in equation.invars)
            for index, variable in enumerate(equation.outvars):
                names[variable] = ("computed", len(lines), index)
            # Nested jaxprs are compared by identity, because JAX traces a function only once for
            # the same shapes.
            settings = tuple(
                (key, id(value) if hasattr(value, "jaxpr") else repr(value))
                for key, value in sorted(equation.params.items())
            )
            lines.append((equation.primitive.name, reads, settings))
        return (tuple(lines), name(self.result))

    def __call__(self, *values: Any) -> Any:
        """Return the array for values of the inputs."""
        names = self.jaxpr.debug_info.with_unknown_names()
        program = self.jaxpr.replace(
            constvars=(),
            invars=self.inputs,
            outvars=(self.result,),
            eqns=self.equations,
            debug_info=names,
        )
        return jax.core.eval_jaxpr(program, (), *values)[0]


class Program:
    """A jaxpr that can be split into the programs of single arrays."""

    def __init__(self, jaxpr: Any) -> None:
        self._jaxpr = jaxpr
        self._equations = jaxpr.eqns
        self._equation_of = {
            variable: index
            for index, equation in enumerate(jaxpr.eqns)
            for variable in equation.outvars
        }

    def extract(self, result: Any, known: Mapping[Any, Any]) -> ArrayProgram:
        """Return the program of a variable (or literal), whose inputs are known variables."""
        needed: set[int] = set()
        inputs: dict[Any, None] = {}
        waiting = [result]
        while waiting:
            atom = waiting.pop()
            if isinstance(atom, Literal):
                continue
            if atom in known:
                inputs[atom] = None
                continue
            index = self._equation_of[atom]
            if index not in needed:
                needed.add(index)
                waiting.extend(self._equations[index].invars)
        return ArrayProgram(
            self._jaxpr,
            tuple(self._equations[index] for index in sorted(needed)),
            tuple(inputs),
            result,
        )


def make_shardings(mesh: Any, layout: Any, shapes: Any) -> Any:
    """Return a sharding for each array of a tree.

    Args:
      mesh: the mesh of devices.
      layout: a tree of PartitionSpec or None, each for all arrays below it. None means whole arrays
        on all devices.
      shapes: the tree of arrays, or of their shapes.
    """

    def shard_subtree(spec: Any, subtree: Any) -> Any:
        return jax.tree.map(lambda _: NamedSharding(mesh, spec or PartitionSpec()), subtree)

    def is_spec(node: Any) -> bool:
        return node is None or isinstance(node, PartitionSpec)

    return jax.tree.map(shard_subtree, layout, shapes, is_leaf=is_spec)


def make_arrays(function: Callable[[Any], Any], key: Any, shardings: Any) -> Any:
    """Return jax.jit(function, out_shardings=shardings)(key), up to rounding.

    Outputs that are computed alike are compiled once.

    Args:
      function: from a random key to a tree of arrays.
      key: a random key.
      shardings: a sharding for each array, in the same tree.
    """
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(key)
    jaxpr = closed.jaxpr
    program = Program(jaxpr)
    variables = [*jaxpr.constvars, *jaxpr.invars]
    inputs = dict(zip(variables, [*closed.consts, *jax.tree.leaves(key)], strict=True))
    values = _compute_keys(jaxpr, program, inputs)
    outputs = [program.extract(result, values) for result in jaxpr.outvars]
    output_shardings = jax.tree.leaves(shardings)
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, (output, sharding) in enumerate(zip(outputs, output_shardings, strict=True)):
        groups.setdefault((output.signature(), sharding), []).append(index)

    def read_inputs(index: int) -> list[Any]:
        return [values[variable] for variable in outputs[index].inputs]

    def compile_group(indices: list[int]) -> Any:
        first = indices[0]
        jitted = jax.jit(outputs[first], out_shardings=output_shardings[first])
        return jitted.lower(*read_inputs(first)).compile()

    # Processes that compile a program together must all compile the programs in the same order.
    with ThreadPoolExecutor(1 if jax.process_count() > 1 else None) as pool:
        programs = list(pool.map(compile_group, groups.values()))
    arrays: list[Any] = [None] * len(outputs)
    for compiled, indices in zip(programs, groups.values(), strict=True):
        for index in indices:
            arrays[index] = compiled(*read_inputs(index))
    return jax.tree.unflatten(jax.tree.structure(shapes), arrays)


def _compute_keys(jaxpr: Any, program: Program, inputs: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the values of the inputs, and of the random keys that the outputs need."""
    needed: set[int] = set()
    for result in jaxpr.outvars:
        needed.update(map(id, program.extract(result, inputs).equations))
    values = dict(inputs)
    # In order, because a key may be derived from another key.
    for equation in jaxpr.eqns:
        if equation.primitive.name == KEY_PRIMITIVE and id(equation) in needed:
            variable = equation.outvars[0]
            key_program = program.extract(variable, values)
            values[variable] = key_program(*(values[known] for known in key_program.inputs))
    return values
