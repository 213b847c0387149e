"""`dysharp rtl`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dysharp.api.arguments import HardwareArgs
from dysharp.base import ByName, ConfigError, Tally
from dysharp.cli.flags import WRITTEN, Json, complete_words, options, refuse_others
from dysharp.runs.arguments import RequestArgs
from dysharp.show.output import print_facts, print_json, print_table
from dysharp.silicon.rtl.blocks import BLOCKS, load_block

if TYPE_CHECKING:
    from dysharp.api.hardware import Hardware
    from dysharp.silicon.rtl.synthesis import Synthesized

ALL = "all"
OTHER: ByName = {"out": WRITTEN, "testbench": WRITTEN, "model": {"default": "S-8"}, "routing": {"default": "uniform"}}


@click.command(epilog="\b\nBlocks:\n" + "\n".join(f"  {name:18} {what}" for name, what in BLOCKS.items()))
@click.argument("block", shell_complete=complete_words(*BLOCKS, ALL))
@options((RequestArgs, "cluster"), HardwareArgs, (RequestArgs, "model", "routing"), **OTHER)
def rtl(block: str, *, faults: bool, trace: bool, model: str, routing: str, as_json: Json, **asked: Any) -> None:
    """Write a block of hardware as Verilog, find its area, and check it against its model.

    BLOCK is a table or a piece of logic that DySHARP, MoE-Hub or CAIS adds, or `all`: a table of all blocks. The cluster's file sets its size.
    Needs the extra "rtl".
    """
    from dysharp.api.hardware import every_block, hardware

    if faults:
        refuse_others("--faults", ("block", "faults", "as_json"), "it alone (planted faults are at small sizes)")
        _print_faults(list(BLOCKS) if block == ALL else [block], as_json)
        return
    if not trace and (model, routing) != ("S-8", "uniform"):
        raise ConfigError(f"--model, --routing: found {model}, {routing}, expected --trace with them (the cluster sets the sizes)")
    if block == ALL:
        single = {"--out": asked.pop("out"), "--testbench": asked.pop("testbench"), "--trace": trace or None}
        if given := [name for name, value in single.items() if value is not None]:
            raise ConfigError(f"{given[0]} of all: found no single block, expected one of {', '.join(BLOCKS)}")
        blocks = every_block(**asked)
        print_json([found.to_dict() for found in blocks]) if as_json else _print_blocks(blocks)
        return
    found = hardware(block, trace=(model, routing) if trace else None, **asked)
    print_json(found.to_dict()) if as_json else _print_hardware(found)


def _print_faults(blocks: list[str], as_json: bool) -> None:
    """Planted faults that were found, by block."""
    for block in blocks:
        load_block(block)  # without the extra or the block, one clear line
    from dysharp.testing.block_faults import found

    counts = {block: found(block) for block in blocks}
    if as_json:
        print_json(counts)
        return
    done = {by: [sum(ends) for ends in zip(*(count[by] for count in counts.values()), strict=True)] for by in ("comparison", "proofs")}
    rows = [(name, *(f"{n} of {all_of}" for n, all_of in by.values())) for name, by in (counts | {"all": done}).items()]
    print_table(("planted faults found", "by the comparison", "by the proofs"), rows)


def _print_blocks(blocks: list[Hardware]) -> None:
    """A table for each question that was asked."""
    what = [(b.block, str(sum(m.bits for m in b.memories)), b.meaning) for b in blocks]
    print_table(("block", "memory bits", "what it is"), what, text=["what it is"])
    if blocks[0].checked:
        click.echo("\nblock and model, every output of every cycle")
        rows = [(b.block, *(str(sum(getattr(done, n) for _, done in b.checked)) for n in ("sequences", "cycles")), _latest(b)) for b in blocks]
        print_table(("block", "sequences", "cycles", "cycles to an answer, waits included"), rows, left=1)
    if blocks[0].proven:
        click.echo()
        _print_proofs(blocks)
    if blocks[0].cost:
        _print_areas(blocks)
    if blocks[0].library_kge is not None:
        click.echo("\nlogic in the cells of the library, by its NAND2")
        print_table(("block", "kGE"), [(b.block, f"{b.library_kge:.2f}") for b in blocks])


def _latest(block: Hardware) -> str:
    return str(max(done.answer_cycles for _, done in block.checked))


def _print_proofs(blocks: list[Hardware]) -> None:
    """Every promise with what it assumes, and whether it was proven."""
    proofs = [proof for block in blocks for proof in block.proven]
    if proofs:
        by = [f"{proof.cycles} cycles from reset" if proof.cycles else "induction" for proof in proofs]
        rows = [(p.block, "yes" if p.holds else "NO", how, p.promise, p.assumed) for p, how in zip(proofs, by, strict=True)]
        print_table(("block", "holds", "by", "promise", "assumed"), rows, left=5)


def _print_areas(blocks: list[Hardware]) -> None:
    """Synthesized by block, and our areas by part beside the published ones."""
    from dysharp.api.hardware import beside_papers
    from dysharp.silicon.area import total

    click.echo()
    rows = []
    for name, c in [(b.block, b.cost) for b in blocks if b.cost]:
        areas = (f"{c.mm2(node).middle:.4f}" for node in (12, 7))
        rows.append((name, f"{c.kge:.2f}", str(c.sram_bits), str(c.cam_bits), *areas, str(c.path_gates), str(c.path_macros)))
    print_table(("block", "logic kGE", "SRAM bits", "CAM bits", "mm2 12 nm", "mm2 7 nm", "path gates", "path macros"), rows, left=1)
    for row, parts in beside_papers(blocks):
        click.echo(f"\n{row.name}, {row.node} nm: published {row.mm2}")
        cells = [(name, *(f"{end:.4f}" for end in spread)) for name, spread in (parts | {"all": total(parts)}).items()]
        print_table(("part", "low mm2", "middle mm2", "high mm2"), cells, left=1)


def _print_hardware(found: Hardware) -> None:
    """The answers to what was asked, then the block and its memories; its pins where nothing was asked."""
    for path in filter(None, (found.path, found.testbench)):
        click.echo(f"written: {path}")
    asked = bool(found.checked or found.proven or found.trace or found.cost or found.library_kge is not None)
    _print_answers(found)
    if asked or found.path or found.testbench:
        click.echo()
    facts: list[tuple[str, Any]] = [(found.block, found.meaning)]
    facts += [(name.replace("_", " "), value) for name, value in found.parameters.items()]
    facts += [("memory bits", sum(m.bits for m in found.memories))]
    print_facts((name, str(value)) for name, value in facts)
    if not asked:
        click.echo("\n" + found.interface + "\n")
        print_table(("pin", "side", "bits"), [(pin.name, pin.side, str(pin.bits)) for pin in found.pins], left=2)
    cells = [(m.name, str(m.depth), str(m.width), str(m.reads), str(m.writes)) for m in found.memories]
    if cells:
        click.echo()
        print_table(("memory", "words", "bits", "read ports", "write ports"), cells)


def _print_answers(found: Hardware) -> None:
    """What was checked, proven, traced and synthesised."""
    for parameters, done in found.checked:
        click.echo(f"equal to the model: {done.sequences} sequences, {done.cycles} cycles ({_words(parameters)}; {_words(done.seen)})")
    if found.checked:
        click.echo(f"answers come at most {_latest(found)} cycles after their step, waits included")
    if t := found.trace:
        counts = f"{t.results} results, {t.bypasses} bypasses, {t.evictions} evictions"
        click.echo(f"one port of {t.model}, {t.routing} routing: {len(t.steps)} packets, {counts}; block, protocol and packet level agree")
    _print_proofs([found])
    if found.proven and found.cost:
        click.echo()
    if found.cost:
        _print_cost(found.cost)
    if found.library_kge is not None:
        click.echo(f"logic in the cells of the library, by its NAND2: {found.library_kge:.2f} kGE")


def _print_cost(cost: Synthesized) -> None:
    """Areas with their parts, gates and the longest path."""
    rows = []
    for node in (12, 7):
        parts = cost.parts_mm2(node) | {"all": cost.mm2(node)}
        rows += [(f"{node} nm", name, *(f"{value:.5f}" for value in spread)) for name, spread in parts.items()]
    print_table(("node", "part", "low mm2", "middle mm2", "high mm2"), rows, left=2)
    click.echo(f"\nlogic {cost.kge:.2f} kGE, SRAM {cost.sram_bits} bits, CAM {cost.cam_bits} bits")
    click.echo(f"longest path: {cost.path_gates} gates and {cost.path_macros} reads of memories or CAMs")


def _words(values: Tally) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items())
