"""The engine's sources as plain Python: without numba, with changed texts if wanted, with a limit on loops."""

import ast
import builtins
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import dysharp
from dysharp.base.errors import SimulationError
from dysharp.engine.burst.run import trace_of
from dysharp.program import Program, Trace

ROOT = Path(dysharp.__file__).parent
PREFIX = "dysharp."
MODULES = (
    *(f"engine.blocks.{p.stem}" for p in sorted((ROOT / "engine" / "blocks").glob("*.py")) if p.stem != "__init__"),
    *("engine.burst.chains", "engine.burst.loop", "engine.burst.lower", "engine.burst.lower_points"),
)
EVENTS = 1 << 40  # no limit on events: one call runs the Program, and the limit on steps ends it


class TooManySteps(Exception):
    """A run had more loop iterations than allowed."""


class _Plain(ast.NodeTransformer):
    """Counts loop iterations. A shift by a negative number gives 0, because compiled code raises no error there."""

    def _loop(self, node: Any) -> Any:
        self.generic_visit(node)
        node.body.insert(0, ast.Expr(ast.Call(ast.Name("__step__", ast.Load()), [], [])))
        return node

    visit_For = _loop
    visit_While = _loop

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.op, ast.LShift):
            return ast.Call(ast.Name("__shift__", ast.Load()), [node.left, node.right], [])
        return node


def source(module: str) -> str:
    """Text of an engine module such as "engine.blocks.link"."""
    return (ROOT / Path(*module.split("."))).with_suffix(".py").read_text(encoding="utf-8")


def _code(module: str, text: str) -> CodeType:
    tree = _Plain().visit(ast.parse(text))
    return compile(ast.fix_missing_locations(tree), f"<plain {module}>", "exec")


@cache
def _unchanged(module: str) -> CodeType:
    return _code(module, source(module))


def _shift(value: int, by: int) -> int:
    return value << by if by >= 0 else 0


def _views(state: Any) -> Any:
    """The state with memoryviews for arrays: they return Python integers. An int32 would overflow where compiled code does not."""
    if isinstance(state, tuple):
        return type(state)(*map(_views, state))
    return None if state is None else memoryview(state)


def _lowest(word: int) -> int:
    return (word & -word).bit_length() - 1


def _nothing(*_: Any) -> None:
    pass


def _identity(function: Any) -> Any:
    return function


class PlainEngine:
    """The burst engine in private modules. `changed`: {module such as "engine.blocks.link": changed text}."""

    def __init__(self, changed: Mapping[str, str] | None = None, max_steps: int = 2_000_000) -> None:
        self._changed = dict(changed or {})
        self._max_steps = max_steps
        self._steps = 0
        self._modules: dict[str, ModuleType] = {}
        decorators = ModuleType("kernel")
        vars(decorators).update(kernel=_identity, block=_identity, routine=_identity, by_address=_identity, prefetch=_nothing, lowest=_lowest)
        self._modules["engine.kernel"] = decorators
        self._builtins = vars(builtins) | {"__import__": self._import, "__step__": self._step, "__shift__": _shift}
        self._loop = self._load("engine.burst.loop")

    def run(self, program: Program) -> Trace:
        """The Trace of `program`. Raises SimulationError (deadlock) or TooManySteps.

        A changed engine may raise anything.
        """
        state = self._load("engine.burst.lower").lower(program)
        views = _views(state)
        self._steps = 0
        self._loop.run_start(views)
        self._loop.run_loop(EVENTS, views)
        n_done = int(state.clock.x[self._load("engine.blocks.columns").RUN_DONE])
        if n_done != program.n_ops:
            raise SimulationError(f"plain engine: found {n_done} ops done, expected {program.n_ops}")
        return trace_of(program, state)

    def _step(self) -> None:
        self._steps += 1
        if self._steps > self._max_steps:
            raise TooManySteps(f"plain engine: found more than {self._max_steps} loop iterations")

    def _load(self, name: str) -> ModuleType:
        if name not in self._modules:
            module = self._modules[name] = ModuleType(PREFIX + name)
            vars(module)["__builtins__"] = self._builtins
            code = _code(name, self._changed[name]) if name in self._changed else _unchanged(name)
            exec(code, vars(module))  # our own source text, never input
        return self._modules[name]

    def _import(self, name: str, scope: Any = None, local: Any = None, fromlist: tuple[str, ...] = (), level: int = 0) -> Any:
        """Import engine modules from this object and other modules as usual."""
        inner = name.removeprefix(PREFIX)
        if name.startswith(PREFIX) and (inner in MODULES or inner in self._modules):
            return self._load(inner)
        if name == PREFIX + "engine.blocks":
            package = ModuleType(name)
            vars(package).update({n: self._load(f"engine.blocks.{n}") for n in fromlist})
            return package
        return builtins.__import__(name, scope, local, fromlist, level)
