"""The register of systems. `_scan` imports every module of this folder, then every entry point of the group `dysharp.systems`."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from dysharp.errors import ConfigError, nearest
from dysharp.program import Program
from dysharp.specs import Cluster, Model
from dysharp.specs.gpu import load_gpu
from dysharp.workload import Routing

Plan = Callable[[Model, Cluster, Routing, str, Any], Program]
FUSED_GEMMS = "fused"
"""Value of the option `gemms`: the GEMMs are those of a fused kernel."""
OTHER_COLOUR = "#44AA99"
"""Plot colour of every system that declares none."""


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
            (self.gated and not model.gated, "for ungated experts, expected three matrices"),
        ]
        return next((f"no kernel {text} ({self.source})" for wrong, text in found if wrong), "")


@dataclass(frozen=True, slots=True)
class Change:
    """A change of software or hardware that `advise` tries on a machine: the system that declares it shows what the change would bring."""

    name: str
    assumes: str
    rank: int
    """Place in the list of changes: smaller changes come first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A system under its public name, with every fact about the system that other folders read."""

    name: str
    source: str
    summary: str
    """One line: of the module, or of the plan where a module holds several systems."""
    options: type
    traffic: str
    """Closed-form scheme of `workload.traffic`."""
    plan: Plan
    permutes: int
    """Permutations of a pass (rows sorted by expert and put back) that the Program does not contain. On hw clusters each adds to the layer time.

    0: the system writes rows in place, or its Program contains the permutation.
    """
    fused: bool
    """One kernel is the whole layer: no activation, cast or launch is added to the Program's time."""
    drops: str
    """What the paper form leaves out."""
    today: bool
    """The software runs on machines one can buy."""
    bound: bool
    """No system that one could build, but a lower bound."""
    gemm_variants: tuple[str, ...]
    """Values of the option `gemms` that "auto" chooses from on an hw cluster: the faster one counts. (): no such option."""
    row_formats: tuple[str, ...]
    """Values that the option `dispatch` takes."""
    colour: str
    """Plot colour, "#RRGGBB"."""
    change: Change | None
    ships: Ships | None
    """None: not known."""

    @property
    def has_real_form(self) -> bool:
        """Whether it also exists with its software costs (option `form`), and not only as papers assume."""
        return _has_form(self.options)

    def is_one_kernel(self, options: Mapping[str, Any]) -> bool:
        """Whether one kernel is the whole layer with these `options`."""
        return self.fused or options.get("gemms") == FUSED_GEMMS


def _has_form(options: type) -> bool:
    return any(f.name == "form" for f in dataclasses.fields(options))


_REGISTRY: dict[str, System] = {}


def system(
    name: str,
    *,
    source: str,
    options: type,
    traffic: str,
    permutes: int,
    fused: bool,
    drops: str = "",
    today: bool | None = None,
    bound: bool = False,
    gemm_variants: tuple[str, ...] = (),
    row_formats: tuple[str, ...] = ("rows",),
    colour: str = OTHER_COLOUR,
    change: Change | None = None,
    ships: Ships | None = None,
) -> Callable[[Plan], Plan]:
    """Register a plan function as the system `name`; the parameters are the fields of `System`.

    `permutes` and `fused` have no default, because they change layer times on hw clusters. `today` None: whether the system has a real form.
    Raises ConfigError for a colour that is not "#RRGGBB", and for `gemm_variants` without the option `gemms`.
    """
    if not re.fullmatch("#[0-9A-Fa-f]{6}", colour):
        raise ConfigError(f'system "{name}": found colour {colour!r}, expected "#RRGGBB"')
    if gemm_variants and "gemms" not in {f.name for f in dataclasses.fields(options)}:
        raise ConfigError(f'system "{name}": found gemm_variants but no option "gemms", expected both or none')

    def register(plan: Plan) -> Plan:
        _REGISTRY[name] = System(
            name=name,
            source=source,
            summary=_summary(name, plan),
            options=options,
            traffic=traffic,
            plan=plan,
            permutes=permutes,
            fused=fused,
            drops=drops,
            today=_has_form(options) if today is None else today,
            bound=bound,
            gemm_variants=gemm_variants,
            row_formats=row_formats,
            colour=colour,
            change=change,
            ships=ships,
        )
        return plan

    return register


def _summary(name: str, plan: Plan) -> str:
    """The first line of the module, or of the plan where the module holds systems of other names."""
    own = (plan.__doc__ or "").strip().splitlines()
    if own and plan.__module__.rpartition(".")[2].replace("_", "-") != name:
        return own[0]
    return ((importlib.import_module(plan.__module__).__doc__ or "").strip().splitlines() or [""])[0]


@cache
def _scan() -> None:
    package = importlib.import_module("dysharp.systems")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"dysharp.systems.{module.name}")
    for entry in entry_points(group="dysharp.systems"):
        try:
            entry.load()
        except Exception as error:  # whatever a system from outside raises, every command names the system
            raise ConfigError(f"entry point {entry.name} = {entry.value} (dysharp.systems): found {type(error).__name__}: {error}") from error


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
