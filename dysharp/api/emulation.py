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
    """Run one MoE layer of `block` under `system` on real tensors and compare it with its references.

    `block`: of `dysharp list blocks`; `gpus` GPUs with `tokens` tokens each; `dtype`: int32 (block integer), float32 or bfloat16; `backward`:
    gradients too; `inject`: kinds of faults and hard cases (`dysharp emulate --help`); `order`: random, trace (of the timed engine), oldest,
    newest, late-delivery, late-completion; `path`: row, packet or auto (packets while there are few); `experts`: of the layer (default 4 per
    GPU), `topk` (default 4, at most all); `dump`: also list the packets of that token (packet path). The same arguments give the same result.

    Returns an `Emulation`; its `holds` says whether the tensors are right. Raises ConfigError for wrong input, EmulationMismatch when the
    machine hangs (naming what waits) or adds something not exactly once.
    """
    from dysharp.functional.emulation import Shape, run_emulation

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

    def tell(done: int, total: int) -> None:
        if progress:
            progress(Step(system, 1, 1, "emulate", done, total))

    return run_emulation(
        system,
        block,
        Shape(hidden, expert_hidden, experts, topk),
        gpus=gpus,
        tokens=tokens,
        dtype=dtype,
        backward=backward,
        inject=inject,
        order=order,
        path=path,
        seed=seed,
        options=given,
        placement=placement,
        dump_token=dump,
        tracer=_engine if order == "trace" else None,
        progress=tell,
    )


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
