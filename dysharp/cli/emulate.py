"""`dysharp emulate`: real tensors through the modelled machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from dysharp.base.errors import ConfigError, EmulationMismatch
from dysharp.cli.flags import PLACEMENT_HELP, SET_HELP, complete_from, complete_systems, helps, json_flag, workload_flag
from dysharp.show.output import print_facts, print_json, print_lines

if TYPE_CHECKING:
    from dysharp.functional.collective import CollectiveEmulation
    from dysharp.functional.emulation import Emulation

DTYPE_HELP = "Data type of the payload: int32, float32 or bfloat16.  [default: int32 for block integer, else float32]"
_LABELS = {"merged": "joined a miss"}
"""Counts of tables whose name needs words."""
ORDERS = "random, trace, oldest, newest, late-delivery, late-completion"


def _kinds() -> Mapping[str, str]:
    from dysharp.functional.faults import KINDS

    return KINDS


@click.command()
@click.argument("system", shell_complete=complete_systems)
@workload_flag
@click.option("--block", default="integer", show_default=True, metavar="B", help="MoE block; `dysharp list blocks` shows all.")
@click.option("--gpus", type=int, default=4, show_default=True, metavar="G", help="GPUs of the machine.")
@click.option("--cluster", default="paper-gh200-nvl32", show_default=True, metavar="C", help="Cluster: its links, NVLink domains, table sizes.")
@click.option("--tokens", type=int, default=8, show_default=True, metavar="T", help="Tokens per GPU.")
@click.option("--dtype", metavar="D", help=DTYPE_HELP)
@click.option("--hidden", type=int, default=256, show_default=True, metavar="H", help="Elements of a token.")
@click.option("--expert-hidden", type=int, default=64, show_default=True, metavar="I", help="Inner width of an expert.")
@click.option("--experts", type=int, metavar="E", help="Experts of the layer.  [default: 4 per GPU]")
@click.option("--topk", type=int, metavar="K", help="Experts per token.  [default: 4]")
@click.option("--backward", is_flag=True, help="Run the backward pass too, and compare the gradients.")
@click.option(
    "--inject",
    multiple=True,
    metavar="KIND",
    is_eager=True,
    callback=helps(_kinds, 12),
    shell_complete=complete_from(_kinds, "help"),
    help="Inject a fault or a hard case; repeatable. `dysharp emulate --inject help` lists the kinds.",
)
@click.option("--order", default="random", show_default=True, metavar="O", help=f"Order of events: {ORDERS}.")
@click.option("--path", default="auto", show_default=True, metavar="auto|row|packet", help="Move rows or packets; auto: packets while there are few.")
@click.option("--placement", default="auto", show_default=True, metavar="P", help=PLACEMENT_HELP)
@click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="Seed of everything that is drawn.")
@click.option("--dump", is_flag=True, help="Print the packets of one token as they move (packet path).")
@click.option("--token", type=int, metavar="N", help="Token whose packets --dump prints.  [default: 0]")
@click.option("--set", "settings", multiple=True, metavar="SYSTEM.OPTION=VALUE", help=SET_HELP)
@json_flag
def emulate(system: str, inject: tuple[str, ...], dump: bool, token: int | None, settings: tuple[str, ...], as_json: bool, **values: Any) -> None:
    """Run one MoE layer, or one collective (--workload), under SYSTEM on real tensors, and compare its output with the references.

    Exit code 1 when a tensor is wrong or the machine hangs.
    """
    from dysharp.api import emulate as emulate_layer
    from dysharp.cli.progress_bar import progress_bar
    from dysharp.functional.collective import CollectiveEmulation
    from dysharp.runs.options import parse_set

    if values["workload"] is not None and (dump or token is not None):
        raise ConfigError(f"dump: found {'--dump' if dump else '--token'} beside --workload, expected one of them")
    with progress_bar() as progress:
        done = emulate_layer(
            system, inject=inject, options=parse_set(settings), dump=(token or 0) if dump or token is not None else None, progress=progress, **values
        )
    if as_json:
        print_json(done.to_dict())
    elif isinstance(done, CollectiveEmulation):
        print_collective(done)
    else:
        print_emulation(done)
    if isinstance(done, CollectiveEmulation):
        if not done.holds:
            raise EmulationMismatch(f"emulate {system}: found wrong vectors on GPUs {', '.join(map(str, done.wrong_gpus))}, expected the reference")
    elif not done.holds:
        raise EmulationMismatch(
            f"emulate {system}: found a relative error of {done.max_rel_error:.3g} and bits {'equal to' if done.exact else 'unlike'} the sum "
            f"in the recorded order, expected at most {done.bound:.3g} and equal bits"
        )


def print_collective(done: CollectiveEmulation) -> None:
    """The answer, then the facts by name."""
    print_lines([f"{done.system} computes the collective {'right' if done.holds else 'WRONG'}: largest error {done.max_abs_error:g}", ""])
    reference = "NumPy on the same vectors; whole numbers, so sums are exact in any order"
    print_facts(
        [("collective", f"{done.workload}, {done.gpus} GPUs"), ("machine", f"{done.n_ops} ops, order {done.order}"), ("reference", reference)]
    )


def print_emulation(done: Emulation) -> None:
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
    if done.packets:
        rows.append(("packets", ", ".join(f"{name} {n}" for name, n in done.packets.items())))
        rows.append(("flits", ", ".join(f"{name} {n}" for name, n in done.flits.items())))
    rows += [(f"  {name}", ", ".join(f"{_LABELS.get(key, key)} {value}" for key, value in table.items())) for name, table in done.tables.items()]
    rows += [(f"injected {kind}", f"{n} times" if n else f"0 times: {done.not_injected[kind]}") for kind, n in done.injected.items()]
    print_facts(rows)
