"""`emulate`: real tensors through the modelled machine."""

import dataclasses
from functools import partial
from typing import Any, Unpack

from dysharp.api.arguments import EmulateArgs
from dysharp.base import ConfigError
from dysharp.functional.collective import CollectiveEmulation, emulate_collective
from dysharp.functional.emulation import Emulation, Shape, run_emulation
from dysharp.functional.faults import machine_faults
from dysharp.functional.machine import Machine
from dysharp.functional.sub_layers import emulate_sub_layer
from dysharp.program import Program, Trace
from dysharp.runs import arguments_of, make_collective_request, options_of, split_options, takes, telling
from dysharp.runs.collective import collective_options, planned
from dysharp.systems import get_system
from dysharp.systems.collectives import get_collective
from dysharp.workload import SubLayer


@takes(EmulateArgs)
def emulate(system: str = "dysharp", **request: Unpack[EmulateArgs]) -> Emulation | CollectiveEmulation:
    """Run one MoE layer, or one collective (`workload`), under `system` on real tensors and compare its output with the references.

    The same arguments give the same result. Returns an `Emulation`; its `holds` says whether the tensors are right. Raises TypeError for an unknown
    argument, ConfigError for wrong input, EmulationMismatch when the machine hangs (the message names what waits) or does not add every contribution
    exactly once.
    """
    if request["workload"] is not None:
        return _emulate_collective(system, request)
    chosen = get_system(system)
    options = split_options(request["options"], {chosen.name: chosen})[chosen.name]
    options_of(chosen, options)  # checked here, where messages name the option
    shape = _shape(request)
    kinds, progress = tuple(request["inject"]), request["progress"]
    machine = machine_with_engine(
        system=system, gpus=request["gpus"], cluster=request["cluster"], order=request["order"], seed=request["seed"], path=request["path"],
        placement=request["placement"], faults=machine_faults(kinds), options=options, dump_token=request["dump"],
        progress=partial(telling(progress, system), "emulate"),
    )  # fmt: skip
    tokens, dtype, backward = request["tokens"], request["dtype"], request["backward"]
    return run_emulation(machine, request["block"], shape, tokens=tokens, dtype=dtype, backward=backward, kinds=kinds)


def _shape(request: EmulateArgs) -> Shape:
    """The sizes of the layer. Raises ConfigError for a size, seed or token out of range."""
    gpus, tokens, dump = request["gpus"], request["tokens"], request["dump"]
    experts = 4 * gpus if request["experts"] is None else request["experts"]
    topk = min(4, experts) if request["topk"] is None else request["topk"]
    if topk > experts:
        raise ConfigError(f"topk: found {topk}, expected at most the {experts} experts")
    if dump is not None and not 0 <= dump < gpus * tokens:
        raise ConfigError(f"dump: found token {dump}, expected 0 to {gpus * tokens - 1}")
    return Shape(request["hidden"], request["expert_hidden"], experts, topk)


def wrap(block: Any, machine: Any = None, **settings: Any) -> Any:
    """A copy of a Hugging Face MoE block (or model) whose routed experts run on a modelled machine, forward and backward.

    `machine`: a `dysharp.Machine`, or None to make one from `settings` (`system="dysharp", gpus=4, ...`). Parameters are shared with `block`, which
    is not changed. See `functional/torch` for what blocks can be wrapped. Raises ConfigError at once for a block that cannot be wrapped or is wrapped
    already, for a system, option or order that does not exist, and for settings beside a machine.
    """
    from dysharp.functional.torch import wrap as wrap_block

    if machine is not None and settings:
        raise ConfigError(f"wrap: found a machine and {', '.join(settings)}, expected a machine alone: it has settings of its own")
    return wrap_block(block, machine_with_engine(**settings) if machine is None else machine)


def machine_with_engine(**settings: Any) -> Any:
    """A `Machine` (`functional.machine`) that can also follow the timed engine (`order="trace"`).

    Raises TypeError for an unknown setting, ConfigError for a system, option or order that does not exist.
    """
    machine = Machine(**{"tracer": _engine, **settings})
    machine.options = dataclasses.asdict(options_of(get_system(machine.system), machine.options))
    return machine


def _engine(program: Program) -> Trace:
    from dysharp.engine.burst.run import run_burst

    return run_burst(program)[0]


MOST_EMULATED = 1 << 30
"""Bytes of all vectors of an emulated collective: about a minute."""
_OF_COLLECTIVES = ("workload", "gpus", "cluster", "order", "seed", "options", "progress")
"""Arguments that an emulated collective reads."""


def _emulate_collective(name: str, request: EmulateArgs) -> CollectiveEmulation:
    """Run one collective or sub-layer on whole numbers, and compare the result with NumPy's."""
    from dysharp.engine.burst.run import run_burst

    for argument, meaning in arguments_of(EmulateArgs).items():
        if argument not in _OF_COLLECTIVES and request[argument] != meaning.default:  # type: ignore[literal-required]
            raise ConfigError(f"{argument}: found {request[argument]!r} beside a workload, expected none")  # type: ignore[literal-required]
    shared = {key: request[key] for key in ("workload", "gpus", "cluster", "seed", "options", "progress")}
    system, asked = get_collective(name), make_collective_request({**shared, "fidelity": "burst"})  # type: ignore[typeddict-item]
    wide = asked.work.hidden * asked.work.outer if isinstance(asked.work, SubLayer) else 0
    most = MOST_EMULATED >> (4 if wide else 0)
    if (asked.work.size + 8 * wide) * asked.work.gpus > most:
        found = f"{asked.work.description} on {asked.work.gpus} GPUs"
        raise ConfigError(f"workload: found {found}, expected at most {most >> 20} MiB on all GPUs together (chunks move one by one)")
    program = planned(system, asked, collective_options({name: system}, asked.options)[name])
    trace = run_burst(program)[0] if request["order"] == "trace" else None
    if isinstance(asked.work, SubLayer):
        return emulate_sub_layer(name, program, asked.work, order=request["order"], seed=request["seed"], trace=trace)
    return emulate_collective(name, program, asked.work, order=request["order"], seed=request["seed"], trace=trace)
