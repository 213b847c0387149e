"""Regression values of areas, and of the hardware blocks.

A block is held by the text that Amaranth makes of it and of its proofs, so these rows are of one version of Amaranth. Its model is held by the
inputs that it draws and the outputs that it expects.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from dataclasses import asdict, replace
from functools import partial
from random import Random
from typing import Any

from dysharp.silicon import area, cluster_area
from dysharp.silicon.rtl.blocks import BLOCKS, load_block
from dysharp.specs import Cluster, load_cluster
from tests.stored_values import Cases, Table, digest, read

STORED = Table(__file__)
Columns = dict[str, Any]
SEQUENCES, CYCLES, TEXTS_OF = 3, 40, 2


def clusters() -> dict[str, Cluster]:
    """Packaged clusters, and one whose sizes are all its own."""
    paper = load_cluster("paper-gh200-nvl32")
    sizes = {"al_tlb_entries": 96, "ts_entries": 33, "or_entries": 129, "multimemq_entries": 5, "reduction_buffer_bytes": 24 * 1024}
    odd = replace(paper, **sizes).with_gpus(12)  # type: ignore[arg-type]
    return {
        "paper": paper,
        "odd": odd,
        "h100": load_cluster("paper-dgx-h100"),
        "no switch": load_cluster("hw-mi300x"),
        "cais": load_cluster("paper-cais-h100"),
    }


def area_values(cluster: Cluster) -> Columns:
    """All areas of a cluster."""
    out: Columns = dict(area.dysharp_area(cluster)) | {f"{name}, fewer": mm2 for name, mm2 in area.dysharp_area(cluster, 7, 3).items()}
    out |= {f"cluster {name}": list(spread) for name, spread in cluster_area.cluster_area(cluster).items()}
    out |= {f"cais {name}": list(spread) for name, spread in cluster_area.cais_area(cluster).items()} | cluster_area.area_columns(cluster)
    for row in cluster_area.published(cluster):
        blocks = {name: area.parts_mm2(row.node, kge=3.0 + i, bits=1e5, ported_bits=7e3 * i, cam_bits=900) for i, name in enumerate(row.blocks)}
        parts = cluster_area.beside(row, blocks)
        out |= {row.name: list(asdict(row).values()), f"{row.name}, parts": digest(list(parts)), f"{row.name}, mm2": list(parts.values())}
    return out


def hub_values() -> Columns:
    """Areas of a hub."""
    hubs = ((16384, 64, 48, 16, 2048), (100, 3, 5, 7, 11))
    return {str(sizes): list(area.hub_area(*sizes).values()) for sizes in hubs}


def part_values() -> Columns:
    """Areas of parts."""
    parts = [area.parts_mm2(node, kge=3.0, bits=5e5, ported_bits=7e4, cam_bits=9e3) for node in (12, 7)]
    return {f"{i} {name}": list(spread) for i, found in enumerate(parts) for name, spread in (found | {"total": area.total(found)}).items()}


def line_values() -> Columns:
    """Areas of what a cluster has several of."""
    return {f"{name} {n}": list(area.total(line.parts(n, 7))) for name, line in cluster_area.LINES.items() for n in (1, 2, 64, 65)}


def table_values() -> Columns:
    """Bits and entries of tables."""
    tables = (*area.DYSHARP_TABLES, *area.HUB_TABLES)
    odd = clusters()["odd"]
    return {
        f"{i} {t.entry.__class__.__name__}": [t.entry.bits, t.entries, t.cluster_key, t.reads, t.writes, t.bits(77), area._entries_of(t, odd)]
        for i, t in enumerate(tables)
    }


def amaranth_version() -> str:
    """The version whose texts are stored."""
    return importlib.metadata.version("amaranth")


def block_values(name: str) -> Columns:
    """Text and model of a block at each of its small sizes, and texts of its proofs."""
    from dysharp.silicon.rtl.parts import MACRO
    from dysharp.silicon.rtl.yosys import rtlil_of

    block, paper = load_block(name), load_cluster("paper-gh200-nvl32")
    out: Columns = {"of cluster": list(asdict(block.parameters.of_cluster(paper)).values())}
    for i, p in enumerate(block.small):
        if i < TEXTS_OF:
            out[f"text {i}"] = digest([rtlil_of(block.component(p), "top", platform) for platform in (None, MACRO)[: 2 - i]])
        steps: list[Any] = []
        for sequence in range(SEQUENCES):
            random = Random(f"7 {sequence}")
            model = block.model(p, random)
            for _ in range(CYCLES):
                pins = model.draw(random)
                steps.append([dict(sorted(pins.items())), dict(sorted(model.cycle(pins).items()))])
            steps.append(dict(sorted(model.seen.items())))
        out[f"model {i}"] = digest(steps)
    return out | proof_values(name)


def proof_values(name: str) -> Columns:
    """Texts of the proofs of a block."""
    from dysharp.silicon.rtl.formal import _Wrapped
    from dysharp.silicon.rtl.yosys import rtlil_of

    return {proof.__name__: [digest(rtlil_of(_Wrapped(proof()), "top")), getattr(proof, "bound", 0)] for proof in load_block(name).proofs}


def why_not_compared(part: str) -> str:
    """Why a part is not compared here; "" if it is."""
    if part.startswith("block") and importlib.util.find_spec("amaranth") is None:
        return "needs the extra rtl"
    other = part.startswith("block") and read(STORED.path)["block version"]["amaranth"] != amaranth_version()
    return "the stored texts are of another version of Amaranth" if other else ""


CASES: Cases = {
    **{name: (lambda name=name: area_values(clusters()[name])) for name in ("paper", "odd", "h100", "no switch", "cais")},  # type: ignore[misc]
    "hub": hub_values, "parts": part_values, "lines": line_values, "tables": table_values,
    **{f"block {name}": partial(block_values, name) for name in BLOCKS}, "block version": lambda: {"amaranth": amaranth_version()},
}  # fmt: skip
PARTS = {"areas": [row for row in CASES if not row.startswith("block")]} | {row: [row] for row in CASES if row.startswith("block")}
