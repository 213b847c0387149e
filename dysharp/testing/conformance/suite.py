"""Runs all rules on a system and collects the faults. The import of this file fills the list of rules in order."""

import importlib
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dysharp.base import AnyMapping, ConfigError, DysharpError, Tally, Texts, check_word
from dysharp.runs import options_of
from dysharp.specs import Cluster, Model
from dysharp.systems import System, get_system
from dysharp.systems.collectives import CollectiveSystem, all_collectives, all_tensor_parallel
from dysharp.testing.conformance.case import CheckedPass, Passes, SmallLayer, SystemCase, small_layers
from dysharp.testing.conformance.collectives import cases_of
from dysharp.testing.conformance.rule import LEGAL, RULES, Finding, NotRun, Report, Rule
from dysharp.workload import Routing

for _name in ("rows", "runs", "backward", "emulation", "broken", "surroundings", "collectives"):
    importlib.import_module(f"dysharp.testing.conformance.{_name}")
PACKAGES = (str(Path(__file__).parents[2]), str(Path(np.__file__).parent))
DIRECTIONS = {"fwd": ("fwd",), "bwd": ("bwd",), "both": ("fwd", "bwd")}


def run_suite(
    name: str, model: Model | None, cluster: Cluster | None, routing: Routing | None, direction: str, options: AnyMapping | None,
    rules: Sequence[str] | None,
) -> Report:  # fmt: skip
    """See `dysharp.testing.conformance`."""
    if (other := (all_collectives() | all_tensor_parallel()).get(name)) is not None:
        if any(argument is not None for argument in (model, cluster, routing)):
            raise ConfigError(f"conformance of {name}: found a model, cluster or routing, expected none (the suite makes small workloads)")
        return _collective_suite(other, options, rules)
    system = get_system(name)
    check_word(direction, DIRECTIONS, f"direction {direction!r}: unknown")
    suite = _Suite(system, options, _chosen(rules))
    for layer in _layers(system, model, cluster, routing):
        suite.try_layer(layer, DIRECTIONS[direction])
    suite.try_system()
    suite.list_unasked(DIRECTIONS[direction])
    return Report(name, suite.ran, tuple(suite.failed), tuple(suite.not_run))


def _collective_suite(system: CollectiveSystem, options: AnyMapping | None, rules: Sequence[str] | None) -> Report:
    suite = _Suite(None, options, _chosen(rules))
    for case in cases_of(system, options_of(system, options or {})):
        legal = suite.ask(LEGAL, case.name, (f"found {case.trace.time_ps} ps" for _ in range(1) if case.trace.time_ps < 0))
        suite.ask_all("collective", case, case.name, "" if legal else "the Program is not legal")
    return Report(system.name, suite.ran, tuple(suite.failed), tuple(suite.not_run))


def _chosen(names: Sequence[str] | None) -> dict[Rule, str]:
    """{rule: reason for not running it}; "" = the rule runs."""
    if names is None:
        return {r: "slow; runs only if it is named" if r.slow else "" for r in RULES}
    known = {r.name: r for r in RULES}
    for name in names:
        check_word(name, known, f"rule {name!r}: unknown")
    return {r: "" for r in RULES if r.name in names}


def _layers(system: System, model: Model | None, cluster: Cluster | None, routing: Routing | None) -> list[SmallLayer]:
    if model is None and cluster is None and routing is None:
        return [layer for layer in small_layers().values() if layer.name != "real" or system.has_real_form]
    if model is None or cluster is None or routing is None:
        raise ConfigError("conformance: found only a part of model, cluster and routing, expected all three or none")
    return [SmallLayer("", model, cluster, routing)]


class _Suite:
    """The findings so far. `system`: of layers; None: a system of collectives."""

    def __init__(self, system: System | None, options: AnyMapping | None, rules: dict[Rule, str]) -> None:
        self.system, self.options, self.rules = system, options, rules
        self.ran: Tally = {}
        self.failed: list[Finding] = []
        self.not_run: list[Finding] = []
        self.legal = True

    def try_layer(self, layer: SmallLayer, directions: Texts) -> None:
        assert self.system is not None
        passes = Passes(self.system, layer, self.options)
        legal = [self._try_pass(one) for one in (passes.forward, passes.backward) if one.direction in directions]
        if len(directions) == 2:
            self.ask_all("layer", passes, layer.name, "" if all(legal) else "a pass of the layer is not legal")

    def _try_pass(self, case: CheckedPass) -> bool:
        place = ", ".join(part for part in (case.layer.name, case.direction) if part)
        legal = self.ask(LEGAL, place, _legal(case))
        if legal is None:
            return False
        self.legal &= legal
        self.ask_all("pass", case, place, "" if legal else "the Program is not legal")
        return legal

    def try_system(self) -> None:
        assert self.system is not None
        self.ask_all("system", SystemCase(self.system, self.options), "", "" if self.legal else "a Program of the system is not legal")

    def list_unasked(self, directions: Texts) -> None:
        """Add the rules that `directions` leave out to the rules that did not run."""
        for r in self.rules:
            if r.direction and r.direction not in directions:
                self.not_run.append(Finding(r.name, "", f'direction "{r.direction}" is needed'))
            if r.scope == "layer" and len(directions) == 1:
                self.not_run.append(Finding(r.name, "", 'direction "both" is needed'))

    def ask_all(self, scope: str, case: Any, place: str, why_not: str) -> None:
        for r, left_out in self.rules.items():
            if r.scope != scope or (r.direction and r.direction != case.direction):
                continue
            if left_out or why_not:
                self.not_run.append(Finding(r.name, place, left_out or why_not))
                continue
            for value in r.over or (None,):
                lines = r.check(case) if value is None else r.check(case, value)
                said = " ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)
                where = place if value is None or r.scope == "pass" else ", ".join(part for part in (place, said) if part)
                self.ask(r.name, where, lines)

    def ask(self, name: str, place: str, lines: Iterable[str]) -> bool | None:
        """Run one rule. True if it yields no fault; an exception is a fault. None: it does not run."""
        try:
            faults = list(_guarded(lines))
        except NotRun as reason:
            self.not_run.append(Finding(name, place, str(reason)))
            return None
        self.ran[name] = self.ran.get(name, 0) + 1
        self.failed += [Finding(name, place, text) for text in faults]
        return not faults


def _guarded(lines: Iterable[str]) -> Iterator[str]:
    """The lines of a rule. An exception becomes one more line, except NotRun, which passes through."""
    try:
        yield from lines
    except NotRun:
        raise
    except DysharpError as error:
        yield str(error)
    except Exception as error:  # a system from outside may raise anything
        yield f"found {type(error).__name__}: {str(error) or 'no text'}{_place_of(error)}, expected no exception"


def _place_of(error: Exception) -> str:
    """The last line outside this package and NumPy that led to `error`; "" if there is none."""
    places = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(PACKAGES)]
    return f" ({Path(places[-1].filename).name}:{places[-1].lineno})" if places else ""


def _legal(case: CheckedPass) -> Iterator[str]:
    try:
        layer = case.layer
        case.system.plan(layer.model, layer.cluster, layer.routing, case.direction, case.options)
    except ConfigError as error:
        raise NotRun(str(error)) from None
    assert case.program.n_ops >= 0
    assert case.trace.time_ps >= 0
    yield from ()
