"""Bound: all communication free, experts at full speed; tensors are still produced."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dysharp.program import Discipline, Kind, Program, Template, To
from dysharp.specs import Cluster, Model
from dysharp.systems.building.experts import as_tiles_fill
from dysharp.systems.building.formats import check
from dysharp.systems.building.fused_kernel import formatted_layer
from dysharp.systems.building.layer import STORE
from dysharp.systems.registry import FUSED_GEMMS, Change, system
from dysharp.workload import Routing

GEMMS = ("library", FUSED_GEMMS)


@dataclass(frozen=True, slots=True)
class Options:
    """`gemms`: whose tiles the GEMMs have.

    | gemms | tiles |
    |---|---|
    | library | of a GEMM library; on hw-* clusters an activation and casts run between the GEMMs |
    | fused | of a fused kernel |
    | auto | on hw-* clusters `run` tries both and returns the faster Row; else as "library" |

    `weights`: format of weights, "model", "fp4", "mxfp8" or "nvfp4".
    """

    gemms: str = "auto"
    weights: str = "model"


@system(
    "ideal",
    source="spec/moe_hub.md section 1 (ideal MoE layer); design section 5",
    options=Options,
    traffic="none",
    permutes=0,
    fused=False,
    bound=True,
    gemm_variants=GEMMS,
    colour="#999999",
    change=Change(
        "communication for free",
        "transfers take no time; the faster of GEMM library and fused kernel: the bound of any change to communication",
        rank=3,
    ),
)
def plan(model: Model, cluster: Cluster, routing: Routing, direction: str, options: Options) -> Program:
    """One local op per GPU stands for Dispatch: all rows of its experts arrive at once.

    All sums appear when all results do.
    """
    check("ideal.gemms", options.gemms, ("auto", *GEMMS))
    one_kernel = options.gemms == FUSED_GEMMS
    layer = formatted_layer(
        "ideal", model, cluster, routing, direction, dispatch="rows", weights=options.weights, compute=True, one_kernel=one_kernel
    )
    gpus = np.arange(layer.n_gpus, dtype=np.int32)
    rows = np.bincount(layer.p.slot // routing.placement.slots_per_gpu, minlength=layer.n_gpus)
    template = layer.b.template(
        Template("dispatch.free", Kind.PUT, "dispatch", "copy", framing=layer.b.framing(STORE), src=layer.sent_buffer, dst=layer.arrived)
    )
    issuers = np.array([layer.b.issuer(g, Discipline.PROGRAM_ORDER, name="free") for g in range(layer.n_gpus)], np.int32)
    layer.b.ops(
        template,
        gpus,
        issuer=issuers,
        bytes=model.row_bytes,
        to=To(np.ones(len(gpus), np.int32), gpus, rows, np.arange(len(layer.row_of))),
    )
    layer.combine_free(as_tiles_fill(layer, second_first=False).results)
    return layer.build("none")
