"""`emulate`: real tensors through the modelled machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dysharp.api.options import Value, options_of, split_options
from dysharp.api.progress import Progress, Step
from dysharp.errors import ConfigError
from dysharp.systems import get_system

if TYPE_CHECKING:
    from dysharp.functional.emulation import Emulation
    from dysharp.program import Program, Trace

LIMITS = {"gpus": 1024, "tokens": 1 << 20, "hidden": 1 << 16, "expert_hidden": 1 << 20, "experts": 1 << 16, "topk": 1 << 15}


def emulate(
    system: str = "dysharp",
    *,
    block: str = "integer",
    gpus: int = 4,
    tokens: int = 8,
    dtype: str | None = None,
    backward: bool = False,
    inject: Iterable[str] = (),
    order: str = "random",
    path: str = "auto",
    seed: int = 0,
    hidden: int = 256,
    expert_hidden: int = 64,
    experts: int | None = None,
    topk: int | None = None,
    options: Mapping[str, Value] | None = None,
    placement: str = "auto",
    dump: int | None = None,
    progress: Progress | None = None,
) -> Emulation:
    """Run one MoE layer under `system` on real tensors and compare it with its references.

    The same arguments give the same result.

    block           MoE block; `dysharp list blocks` shows all
    gpus            GPUs of the machine
    tokens          tokens of each GPU
    dtype           of the payload: int32 for block integer, else float32 or bfloat16. None: int32 or float32
    backward        run the backward pass too and compare the gradients
    inject          faults and hard cases; `dysharp emulate SYSTEM --inject help` lists the kinds
    order           order of events: random, trace (as in the timed engine), oldest, newest, late-delivery, late-completion
    path            row (whole rows), packet, or auto (packets while there are few)
    seed            seed of everything that is drawn, at least 0
    hidden          elements of a token
    expert_hidden   inner width of an expert
    experts         experts of the layer. None: 4 per GPU
    topk            experts per token. None: 4, or all experts where there are fewer
    options         {"system.option": value} or {"option": value}
    placement       contiguous, auto, eplb, eplb:slots=N, or a JSON or TOML file
    dump            also list the packets of this token (packet path)
    progress        called with a `Step` while the layer runs

    Returns an `Emulation`; its `holds` says whether the tensors are right. Raises ConfigError for wrong input, EmulationMismatch when the
    machine hangs (the message names what waits) or does not add every contribution exactly once.
    """
    from dysharp.functional.emulation import Shape, run_emulation
    from dysharp.functional.faults import check_kinds, machine_faults

    chosen = get_system(system)
    given = split_options(options, {chosen.name: chosen})[chosen.name]
    options_of(chosen, given)  # checked here, where messages name the option
    experts = 4 * gpus if experts is None else experts
    topk = min(4, experts) if topk is None else topk
    sizes = {"gpus": gpus, "tokens": tokens, "hidden": hidden, "expert_hidden": expert_hidden, "experts": experts, "topk": topk}
    for name, value in sizes.items():
        if not 1 <= value <= LIMITS[name]:
            raise ConfigError(f"{name}: found {value}, expected 1 to {LIMITS[name]}")
    if topk > experts:
        raise ConfigError(f"topk: found {topk}, expected at most the {experts} experts")
    if seed < 0:
        raise ConfigError(f"seed: found {seed}, expected 0 or more")
    if dump is not None and not 0 <= dump < gpus * tokens:
        raise ConfigError(f"dump: found token {dump}, expected 0 to {gpus * tokens - 1}")
    kinds = tuple(inject)
    check_kinds(kinds)

    def on_progress(done: int, total: int) -> None:
        if progress:
            progress(Step(system, 1, 1, "emulate", done, total))

    machine = machine_with_engine(
        system=system,
        gpus=gpus,
        order=order,
        seed=seed,
        path=path,
        faults=machine_faults(kinds),
        options=given,
        placement=placement,
        dump_token=dump,
        progress=on_progress,
    )
    return run_emulation(machine, block, Shape(hidden, expert_hidden, experts, topk), tokens=tokens, dtype=dtype, backward=backward, kinds=kinds)


def wrap(block: Any, machine: Any = None, **settings: Any) -> Any:
    """A copy of a Hugging Face MoE block (or model) whose routed experts run on a modelled machine, forward and backward.

    `machine`: a `dysharp.Machine`, or None to make one from `settings` (`system="dysharp", gpus=4, ...`). Parameters are shared with
    `block`, which is not changed. See `functional/torch` for what blocks can be wrapped.
    """
    from dysharp.functional.torch import wrap as wrap_block

    return wrap_block(block, machine_with_engine(**settings) if machine is None else machine)


def machine_with_engine(**settings: Any) -> Any:
    """A `Machine` that can also follow the timed engine (`order="trace"`)."""
    from dysharp.functional.machine import Machine

    return Machine(**{"tracer": _engine, **settings})


def _engine(program: Program) -> Trace:
    from dysharp.engine.burst.run import run_burst

    return run_burst(program)[0]
