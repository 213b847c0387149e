"""`dysharp emulate`: real tensors through the modelled machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import click

from dysharp.api.arguments import EmulateArgs
from dysharp.base import ConfigError, EmulationMismatch, plain
from dysharp.cli.flags import Json, Out, complete_from, complete_systems, helps, options, refuse_others
from dysharp.show.output import print_facts, print_json, print_lines

if TYPE_CHECKING:
    from dysharp.functional.collective import CollectiveEmulation
    from dysharp.functional.emulation import Emulation

_LABELS = {"merged": "joined a miss"}
"""Counts of tables whose name needs words."""


def _kinds() -> Mapping[str, str]:
    from dysharp.functional.faults import KINDS

    return KINDS


@click.command()
@click.argument("system", shell_complete=complete_systems)
@options(EmulateArgs, inject={"is_eager": True, "callback": helps(_kinds, 12), "shell_complete": complete_from(_kinds, "help")})
def emulate(system: str, *, dump: bool, token: int | None, log: Annotated[str | None, {"type": Out(".jsonl")}], as_json: Json, **asked: Any) -> None:
    """Run one Mixture-of-Experts layer under SYSTEM on real tensors, and check its output.

    With --workload one collective takes the place of the layer. FILE.toml as SYSTEM is a litmus test, such as mp.toml: its outcomes in every order
    of events, and those that a deleted rule lets through; FILE.jsonl is a log of such a test, which is allowed or not. References give the right
    output. Exit code 1 when a tensor is wrong, a log is not allowed, or the machine hangs.
    """
    from dysharp.api import emulate as emulate_layer
    from dysharp.cli.progress_bar import progress_bar
    from dysharp.functional.collective import CollectiveEmulation

    if system.endswith((".toml", ".jsonl")):
        return _litmus(system, log, asked["seed"], as_json=as_json)
    if log is not None:
        raise ConfigError(f"--log: found system {system}, expected a litmus test such as mp.toml")
    if asked["workload"] is not None and (dump or token is not None):
        raise ConfigError(f"dump: found {'--dump' if dump else '--token'} beside --workload, expected one of them")
    with progress_bar() as progress:
        done = emulate_layer(system, dump=(token or 0) if dump or token is not None else None, progress=progress, **asked)
    if as_json:
        print_json(done.to_dict())
    elif isinstance(done, CollectiveEmulation):
        _print_collective(done)
    else:
        _print_emulation(done)
    if isinstance(done, CollectiveEmulation):
        if not done.holds:
            raise EmulationMismatch(f"emulate {system}: found wrong vectors on GPUs {', '.join(map(str, done.wrong_gpus))}, expected the reference")
    elif not done.holds:
        raise EmulationMismatch(
            f"emulate {system}: found a relative error of {done.max_rel_error:.3g} and bits {'equal to' if done.exact else 'unlike'} the sum "
            f"in the recorded order, expected at most {done.bound:.3g} and equal bits"
        )


def _litmus(file: str, log: str | None, seed: int, *, as_json: bool) -> None:
    """Print the outcomes of a litmus test or of a log's program. Raises EmulationMismatch where they are not those that are allowed."""
    from dysharp.base.files import write_text
    from dysharp.functional.litmus import check_log, judge, load_litmus, log_of

    takes = ("system", "as_json", *(("log", "seed") if file.endswith(".toml") else ()))
    refuse_others(f"emulate {file}", takes, "no option of a layer (a test has threads)")
    test = load_litmus(file) if file.endswith(".toml") else None
    found = judge(test.about, test) if test else check_log(file)
    print_json(plain(found)) if as_json else print_lines([found.sentence])
    if test and log is not None:
        write_text(log, log_of(test, seed))
    if found.faults:
        raise EmulationMismatch(f"litmus {file}: {found.faults[0]}")


def _print_collective(done: CollectiveEmulation) -> None:
    """The answer, then the facts by name."""
    right, kind = "right" if done.holds else "WRONG", done.workload.split()[0]
    print_lines([f"{done.system} computes the {kind} {right}: largest error {done.max_abs_error:g}", ""])
    reference = ("reference", "NumPy on the same vectors; whole numbers, so sums are exact in any order")
    print_facts([("workload", f"{done.workload}, {done.gpus} GPUs"), ("machine", f"{done.n_ops} ops, order {done.order}"), reference])


def _print_emulation(done: Emulation) -> None:
    """The answer, the packets of the dump, then the facts by name."""

    print_lines([f"{done.system} computes the layer {'right' if done.holds else 'WRONG'}: largest error {done.max_abs_error:.3g}", ""])
    for text in done.dump:
        click.echo(text)
    passes = "forward and backward" if done.backward else "forward"
    rows = [
        ("layer", f"{done.block}, {done.gpus} GPUs, {done.tokens_per_gpu} tokens per GPU, {done.dtype}, {passes}"),
        ("machine", f"{done.system}, {done.path} path, order {done.order}"),
        ("reference", done.reference),
        ("largest error", f"{done.max_abs_error:.3g}; relative to the largest value {done.max_rel_error:.3g} (allowed {done.bound:.3g})"),
        ("bits", "equal to the sum in the recorded order" if done.exact else "NOT equal to the sum in the recorded order"),
    ]
    rows += done.rounding
    if done.packets:
        rows.append(("packets", ", ".join(f"{name} {n}" for name, n in done.packets.items())))
        rows.append(("flits", ", ".join(f"{name} {n}" for name, n in done.flits.items())))
    rows += [(f"  {name}", ", ".join(f"{_LABELS.get(key, key)} {value}" for key, value in table.items())) for name, table in done.tables.items()]
    rows += [(f"injected {kind}", f"{n} times" if n else f"0 times: {done.not_injected[kind]}") for kind, n in done.injected.items()]
    print_facts(rows)
