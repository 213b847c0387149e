"""The register of systems: one file of this folder each, found by scanning it; outsiders through the entry point `dysharp.systems`."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from dysharp.errors import ConfigError, nearest
from dysharp.program import Program
from dysharp.specs import Cluster, Model
from dysharp.specs.gpu import load_gpu
from dysharp.workload import Routing, Scheme

Plan = Callable[[Model, Cluster, Routing, str, Any], Program]
GATED_MATRICES = 3
"""Of a gated expert: gate, up and down."""


@dataclass(frozen=True, slots=True)
class Ships:
    """What the released software of a system runs on; what its source leaves open is not restricted.

    `archs`: of GPUs (`Gpu.arch`); `formats`: GEMM type of a model -> the options with which the system is usually run for it, a type that is
    missing has no kernels; `hidden`: the sizes that are compiled, () = any; `step`, `expert_step`: hidden sizes (of experts) are multiples of
    it; `gated`: only experts of three matrices.
    """

    source: str
    archs: tuple[str, ...]
    formats: Mapping[str, Mapping[str, str]]
    hidden: tuple[int, ...] = ()
    step: int = 1
    expert_step: int = 1
    gated: bool = False

    def why_not(self, model: Model, cluster: Cluster) -> str:
        """Why it does not run this model on this machine, "" where it does."""
        arch = load_gpu(cluster.gpu).arch
        found = [
            (arch not in self.archs, f"on {arch}, expected {' or '.join(self.archs)}"),
            (model.gemm_dtype not in self.formats, f"for {model.gemm_dtype} models, expected {' or '.join(self.formats)}"),
            (bool(self.hidden) and model.hidden not in self.hidden, f"for hidden {model.hidden}, expected {', '.join(map(str, self.hidden))}"),
            (model.hidden % self.step > 0, f"for hidden {model.hidden}, expected a multiple of {self.step}"),
            (model.expert_hidden % self.expert_step > 0, f"for experts of {model.expert_hidden}, expected a multiple of {self.expert_step}"),
            (self.gated and model.n_matrices != GATED_MATRICES, "for ungated experts, expected three matrices"),
        ]
        return next((f"no kernel {text} ({self.source})" for wrong, text in found if wrong), "")


@dataclass(frozen=True, slots=True)
class System:
    """A system under its public name.

    `traffic`: a closed-form scheme of `workload.traffic` by name, or a function (routing, options) -> token rows up and down per GPU;
    `drops`: what its paper form leaves out.
    """

    name: str
    source: str
    summary: str
    options: type
    traffic: Scheme
    plan: Plan
    drops: str
    today: bool = False
    """Software that runs on machines one can buy; else it needs switches or GPUs that do not exist, or is a bound."""
    ships: Ships | None = None
    """None: not known."""
    peels: str = ""
    """Why ops of one template wait for each other, so that the verifier has to go op by op. "": they do not."""

    @property
    def has_real_form(self) -> bool:
        """Whether it also exists with its software costs (option `form`), and not only as papers assume."""
        return _has_form(self.options)


def _has_form(options: type) -> bool:
    return any(f.name == "form" for f in dataclasses.fields(options))


_REGISTRY: dict[str, System] = {}


def system(
    name: str,
    *,
    source: str,
    options: type,
    traffic: Scheme,
    drops: str = "",
    today: bool | None = None,
    ships: Ships | None = None,
    peels: str = "",
) -> Callable[[Plan], Plan]:
    """Register a plan function. Its module's docstring is the one-line summary. `today` None: whether it has a real form."""

    def register(plan: Plan) -> Plan:
        module = importlib.import_module(plan.__module__)
        summary = (module.__doc__ or "").strip().splitlines()[0]
        now = _has_form(options) if today is None else today
        _REGISTRY[name] = System(name, source, summary, options, traffic, plan, drops, now, ships, peels)
        return plan

    return register


@cache
def _scan() -> None:
    package = importlib.import_module("dysharp.systems")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"dysharp.systems.{module.name}")
    for entry in entry_points(group="dysharp.systems"):
        entry.load()


def all_systems() -> dict[str, System]:
    """Every registered system by name."""
    _scan()
    return dict(sorted(_REGISTRY.items()))


def get_system(name: str) -> System:
    """The system called `name`. Raises ConfigError with the nearest valid name."""
    systems = all_systems()
    if name not in systems:
        raise ConfigError(f"system {name!r}: unknown{nearest(name, systems)}")
    return systems[name]
