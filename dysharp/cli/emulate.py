"""`dysharp emulate`: real tensors through the modelled machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dysharp.cli.flags import complete_systems, json_flag
from dysharp.errors import EmulationMismatch

if TYPE_CHECKING:
    from dysharp.functional.emulation import Emulation

ORDERS = "random, trace, oldest, newest, late-delivery, late-completion"


@click.command()
@click.argument("system", shell_complete=complete_systems)
@click.option("--block", default="integer", show_default=True, metavar="B", help="MoE block; see `dysharp list blocks`.")
@click.option("--gpus", type=int, default=4, show_default=True, metavar="G", help="GPUs.")
@click.option("--tokens", type=int, default=8, show_default=True, metavar="T", help="Tokens per GPU.")
@click.option("--dtype", metavar="D", help="Payload: int32, float32 or bfloat16.  [default: int32 for block integer, else float32]")
@click.option("--hidden", type=int, default=256, show_default=True, metavar="H", help="Elements of a token.")
@click.option("--expert-hidden", type=int, default=64, show_default=True, metavar="I", help="Inner width of an expert.")
@click.option("--experts", type=int, metavar="E", help="Experts of the layer.  [default: 4 per GPU]")
@click.option("--topk", type=int, metavar="K", help="Experts per token.  [default: 4]")
@click.option("--backward", is_flag=True, help="Gradients too.")
@click.option("--inject", multiple=True, metavar="KIND", help="A fault or a hard case, repeatable; `--inject help` lists them.")
@click.option("--order", default="random", show_default=True, metavar="O", help=f"Who goes next: {ORDERS}.")
@click.option("--path", default="auto", show_default=True, metavar="row|packet", help="Whole rows, or packets (auto: while there are few).")
@click.option("--placement", default="auto", show_default=True, metavar="P", help="contiguous, auto, eplb[:slots=N], or a JSON or TOML file.")
@click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="Seed of everything that is drawn.")
@click.option("--dump", is_flag=True, help="Print the packets of one token as they move (packet path).")
@click.option("--token", type=int, metavar="N", help="The token whose packets --dump prints.  [default: 0]")
@click.option("--set", "settings", multiple=True, metavar="SYSTEM.OPTION=VALUE", help="Set an option of a system.")
@json_flag
def emulate(system: str, inject: tuple[str, ...], dump: bool, token: int | None, settings: tuple[str, ...], as_json: bool, **values: Any) -> None:
    """Run one layer on real tensors through SYSTEM, and compare it with its references.

    Exit code 1 when the tensors are not right or the machine hangs.
    """
    from dysharp.api import emulate as emulate_layer
    from dysharp.api.options import parse_set
    from dysharp.cli.output import print_json
    from dysharp.cli.progress import progress_bar

    if "help" in inject:
        _print_kinds()
        return
    with progress_bar() as progress:
        done = emulate_layer(
            system,
            inject=inject,
            options=parse_set(settings),
            dump=(token or 0) if dump or token is not None else None,
            progress=progress,
            **values,
        )
    if as_json:
        print_json(done.to_dict())
    else:
        print_emulation(done)
    if not done.holds:
        raise EmulationMismatch(
            f"emulate {system}: found a largest relative error of {done.max_rel_error:.3g}, bits {'as' if done.exact else 'not as'} recorded, "
            f"expected at most {done.bound:.3g} and the recorded bits"
        )


def _print_kinds() -> None:
    from dysharp.cli.output import console
    from dysharp.functional.faults import KINDS

    for name, text in KINDS.items():
        console().print(f"{name:12} {text}", markup=False)


def print_emulation(done: Emulation) -> None:
    """Packets of the dump first, then name and value."""
    from dysharp.cli.output import console, fact_table

    out = console()
    for text in done.dump:
        click.echo(text)
    verdict = "right" if done.holds else "WRONG"
    rows = [
        ("layer", f"{done.block}, {done.gpus} GPUs x {done.tokens_per_gpu} tokens, {done.dtype}{', with backward' if done.backward else ''}"),
        ("machine", f"{done.system}, {done.path} path, order {done.order}"),
        ("reference", done.reference),
        ("largest error", f"{done.max_abs_error:.3g} absolute, {done.max_rel_error:.3g} of the largest value (at most {done.bound:.3g})"),
        ("bits", "equal to the sum in the recorded order" if done.exact else "NOT those of the sum in the recorded order"),
    ]
    if done.packets:
        rows.append(("packets", ", ".join(f"{name} {n}" for name, n in done.packets.items())))
        rows.append(("flits", ", ".join(f"{name} {n}" for name, n in done.flits.items())))
    rows += [(f"  {name}", ", ".join(f"{key} {value}" for key, value in table.items())) for name, table in done.tables.items()]
    rows += [(f"injected {kind}", f"{n} times") for kind, n in done.injected.items()]
    rows.append(("result", verdict))
    out.print(fact_table(rows))
