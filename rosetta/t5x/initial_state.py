"""Parameters from nothing, compiled in parts: what differs between the layers of a model is a
random key, their initialisation is one program.

As one program, which is what jax.jit makes of it, the initialisation of T5-small takes XLA about as
long to compile as its training step.
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

KEY_PRIMITIVE = "random_fold_in"  # gives a parameter the key of its own


@dataclass(frozen=True, eq=False)
class ArrayProgram:
    """What makes one array: of a jaxpr, equations in order, the variables they take from elsewhere,
    and the one they end in.
    """

    jaxpr: Any
    equations: tuple[Any, ...]
    taken: tuple[Any, ...]
    result: Any

    def signature(self) -> tuple[object, ...]:
        """Return what two parts have in common that make the same of other keys."""
        names: dict[Any, object] = {
            variable: ("taken", index, str(variable.aval))
            for index, variable in enumerate(self.taken)
        }

        def name(atom: Any) -> object:
            return (
                ("literal", str(atom.aval), repr(atom.val))
                if isinstance(atom, Literal)
                else names[atom]
            )

        lines: list[tuple[object, ...]] = []
        for equation in self.equations:
            reads = tuple(name(atom) for atom in equation.invars)
            names.update(
                (variable, ("made", len(lines), index))
                for index, variable in enumerate(equation.outvars)
            )
            # Programs within programs are compared by identity: JAX traces one function for the
            # same shapes once.
            settings = tuple(
                (key, id(value) if hasattr(value, "jaxpr") else repr(value))
                for key, value in sorted(equation.params.items())
            )
            lines.append((equation.primitive.name, reads, settings))
        return (tuple(lines), name(self.result))

    def __call__(self, *values: Any) -> Any:
        """Return the array, given the values of `taken`."""
        names = self.jaxpr.debug_info.with_unknown_names()
        own = self.jaxpr.replace(
            constvars=(),
            invars=self.taken,
            outvars=(self.result,),
            eqns=self.equations,
            debug_info=names,
        )
        return jax.core.eval_jaxpr(own, (), *values)[0]


class Program:
    """A jaxpr that is asked for the parts of it that make single variables."""

    def __init__(self, jaxpr: Any) -> None:
        self._jaxpr, self._equations = jaxpr, jaxpr.eqns
        self._made_by = {
            variable: index
            for index, equation in enumerate(jaxpr.eqns)
            for variable in equation.outvars
        }

    def part(self, result: Any, known: Mapping[Any, Any]) -> ArrayProgram:
        """Return what makes a variable (or literal), as far back as variables that are known."""
        wanted: set[int] = set()
        taken: dict[Any, None] = {}
        waiting = [result]
        while waiting:
            atom = waiting.pop()
            if isinstance(atom, Literal):
                continue
            if atom in known:
                taken[atom] = None
            elif (index := self._made_by[atom]) not in wanted:
                wanted.add(index)
                waiting.extend(self._equations[index].invars)
        return ArrayProgram(
            self._jaxpr,
            tuple(self._equations[index] for index in sorted(wanted)),
            tuple(taken),
            result,
        )


def make_shardings(mesh: Any, layout: Any, shapes: Any) -> Any:
    """Return a sharding for each array of `shapes`, by a layout of PartitionSpecs, or None for
    whole arrays on all devices.
    """

    def below(spec: Any, tree: Any) -> Any:
        return jax.tree.map(lambda _: NamedSharding(mesh, spec or PartitionSpec()), tree)

    return jax.tree.map(
        below, layout, shapes, is_leaf=lambda each: each is None or isinstance(each, PartitionSpec)
    )


def make_arrays(function: Callable[[Any], Any], key: Any, where: Any) -> Any:
    """Return jax.jit(function, out_shardings=where)(key) up to rounding, compiled once for all
    outputs that are made alike.

    Args:
      function: from a random key to a tree of arrays.
      key: a random key.
      where: a sharding for each array, in the same tree.
    """
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(key)
    jaxpr, program = closed.jaxpr, Program(closed.jaxpr)
    values = dict(
        zip([*jaxpr.constvars, *jaxpr.invars], [*closed.consts, *jax.tree.leaves(key)], strict=True)
    )
    inputs = dict(values)
    used = {
        id(equation)
        for result in jaxpr.outvars
        for equation in program.part(result, inputs).equations
    }
    for equation in jaxpr.eqns:  # the keys, in order, as one may be made from another
        if equation.primitive.name == KEY_PRIMITIVE and id(equation) in used:
            own = program.part(equation.outvars[0], values)
            values[equation.outvars[0]] = own(*(values[variable] for variable in own.taken))
    outputs = [program.part(result, values) for result in jaxpr.outvars]
    laid = jax.tree.leaves(where)
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, (output, sharding) in enumerate(zip(outputs, laid, strict=True)):
        groups.setdefault((output.signature(), sharding), []).append(index)

    def compiled(indices: list[int]) -> Any:
        first = outputs[indices[0]]
        return (
            jax.jit(first, out_shardings=laid[indices[0]])
            .lower(*(values[variable] for variable in first.taken))
            .compile()
        )

    # Processes that compile one program together have to come to it in the same order.
    with ThreadPoolExecutor(1 if jax.process_count() > 1 else None) as pool:
        programs = list(pool.map(compiled, groups.values()))
    arrays: list[Any] = [None] * len(outputs)
    for made, indices in zip(programs, groups.values(), strict=True):
        for index in indices:
            arrays[index] = made(*(values[variable] for variable in outputs[index].taken))
    return jax.tree.unflatten(jax.tree.structure(shapes), arrays)
