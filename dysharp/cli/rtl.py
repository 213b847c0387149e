"""`dysharp rtl`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dysharp.cli.flags import complete_clusters, json_flag
from dysharp.cli.output import print_facts, print_json, print_table
from dysharp.silicon.rtl.blocks import BLOCKS

if TYPE_CHECKING:
    from dysharp.api.hardware import Hardware
    from dysharp.silicon.rtl.cost import Cost

DEFAULT_CLUSTER = "paper-gh200-nvl32"


def complete_blocks(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of blocks that begin with what was typed."""
    return [name for name in BLOCKS if name.startswith(incomplete)]


@click.command(epilog="\b\nBlocks:\n" + "\n".join(f"  {name:18} {what}" for name, what in BLOCKS.items()))
@click.argument("block", shell_complete=complete_blocks)
@click.option("--cluster", default=DEFAULT_CLUSTER, show_default=True, metavar="NAME|FILE", shell_complete=complete_clusters, help="Sets sizes.")
@click.option("-o", "--out", metavar="FILE.v", help="Write the block as Verilog.")
@click.option("--check", "sequences", type=click.IntRange(1), metavar="N", help="Compare block and model in N random sequences, cycle by cycle.")
@click.option("--area", is_flag=True, help="Synthesise: gates, area in 12 and 7 nm, longest path.")
@click.option("--trace", is_flag=True, help="Put the packets of one switch port of a run at packet level through the block.")
@click.option("--model", default="S-8", show_default=True, metavar="NAME", help="With --trace: the model.")
@click.option("--routing", default="uniform", show_default=True, metavar="R", help="With --trace: the routing, such as trace:deepseek-v2-lite.")
@click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="Seed of --check.")
@json_flag
def rtl(
    block: str, cluster: str, out: str | None, sequences: int | None, area: bool, trace: bool, model: str, routing: str, seed: int, as_json: bool
) -> None:  # fmt: skip
    """Hardware: a block as Verilog, its area and path, and a check against its model.

    BLOCK is a table or a piece of logic that DySHARP, MoE-Hub or CAIS adds. The cluster's file sets its size. Needs the extra "rtl".
    """
    from dysharp.api.hardware import hardware

    found = hardware(block, cluster, out=out, sequences=sequences, seed=seed, area=area, trace=(model, routing) if trace else None)
    print_json(found.to_dict()) if as_json else print_hardware(found)


def print_hardware(found: Hardware) -> None:
    """What the block is, its memories, and what was checked."""
    facts: list[tuple[str, Any]] = [(found.block, found.meaning)]
    facts += [(name.replace("_", " "), value) for name, value in found.parameters.items()]
    facts += [("memory bits", sum(m.bits for m in found.memories))]
    print_facts((name, str(value)) for name, value in facts)
    click.echo()
    cells = [(m.name, str(m.depth), str(m.width), str(m.reads), str(m.writes)) for m in found.memories]
    if cells:
        print_table(("memory", "words", "bits", "read ports", "write ports"), cells)
    if found.cost:
        click.echo()
        print_cost(found.cost)
    for parameters, done in found.checked:
        click.echo(f"equal to the model: {done.sequences} sequences, {done.cycles} cycles ({_words(parameters)}; {_words(done.seen)})")
    if t := found.trace:
        counts = f"{t.results} results, {t.bypasses} bypasses, {t.evictions} evictions"
        click.echo(f"one port of {t.model}, {t.routing} routing: {len(t.steps)} packets, {counts}; block, protocol and packet level agree")
    if found.path:
        click.echo(f"written: {found.path}")


def print_cost(cost: Cost) -> None:
    """Areas with their parts, gates and the longest path."""
    rows = []
    for node in (12, 7):
        parts = cost.parts_mm2(node) | {"all": cost.mm2(node)}
        rows += [(f"{node} nm", name, *(f"{value:.5f}" for value in spread)) for name, spread in parts.items()]
    print_table(("node", "part", "low mm2", "middle mm2", "high mm2"), rows, left=2)
    click.echo(f"\nlogic {cost.kge:.2f} kGE, SRAM {cost.sram_bits} bits, CAM {cost.cam_bits} bits")
    click.echo(f"longest path: {cost.path_gates} gates and {cost.path_macros} reads of memories or CAMs")


def _words(values: dict[str, int]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items())
