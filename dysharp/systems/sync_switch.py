"""sync-switch: DeepEP V2's kernels with a switch that synchronises: it sums READY, holds early rows back, and DONE is in order behind the last row.

| step of DeepEP V2 | here |
|---|---|
| a barrier of all GPUs before data | READY of all GPUs for a destination is a sum in the switch; rows leave at once and wait for it there |
| a barrier of all GPUs behind data | DONE: a destination with its last row goes on |

Of the time of an exchange of flags (`sync_us`) only the flight goes; the wait for the last GPU stays. `sync-dysharp`: READY carries the counts of
rows by expert, so that rows need not wait at their sources for DySHARP's exchange of `nactive`.
"""

from dataclasses import replace

import numpy as np

from dysharp.base import ByName
from dysharp.program import I32, OTHER, Alloc, Discipline, Kind, To
from dysharp.specs import choice_int
from dysharp.systems import Reach, Shown, deepep_v2, kernels, system
from dysharp.systems.building import DYMULTIMEM, LayerBuilder, fused, one_after_another
from dysharp.systems.building.base import CONTROL
from dysharp.systems.building.batch import Batch, Returns, ids
from dysharp.systems.deepep_v2 import Options, _Elastic
from dysharp.systems.dysharp import INSIDE
from dysharp.systems.dysharp import Options as DysharpOptions

GATES = "it sums READY, holds rows back until all GPUs are ready, and appends DONE"
READY_COUNT = 4
"""Bytes of a count of rows in READY."""


def _ready(layer: LayerBuilder, name: str, after: I32 | None, columns: ByName, counts: int = 0) -> I32 | None:
    """READY of every GPU for every other GPU, after the op `after[gpu]`: a sum for each destination, `counts` numbers long.

    Ops with `columns` wait in the switch for the sum of their destination. Returns `[gpus]` tiles that are ready with it. None: there is one GPU.
    """
    g = layer.n_gpus
    if g == 1:
        return None
    size = choice_int("sync_switch.ready_bytes") + READY_COUNT * counts
    _, row, tile = layer.b.regions(layer.gpus, np.ones(g, np.int32), size, 1, alloc=Alloc.PREFIX, name=f"{name}.ready")
    first = layer.b.sums(layer.gpus, np.full(g, g - 1), 0)
    source, home = (axis.ravel().astype(np.int32) for axis in np.nonzero(~np.eye(g, dtype=bool)))
    template = layer.transfer(f"{name}.ready", Kind.PUSH_REDUCE, "other", cls=OTHER, framing=CONTROL)
    to, issuer = To(1, home, 1, row + home), layer.issuers(f"{name}.ready")[source]
    op = layer.add(template, source, issuer=issuer, bytes=size, key=home, to=to, session=first + home)
    layer.wait_each(op, None if after is None else after[source])
    columns["gate"] = first
    return ids(tile, g)


class _Synced(_Elastic):
    """Both kernels of each call. The wait for the last GPU (`sync_us` without its flights) lies before READY and behind DONE."""

    def begin(self, name: str, after: I32 | None) -> I32:
        start = self.delay(f"{name}.launch", self.costs.kernel_ps, after=after)
        late = self.delay(f"{name}.others", max(0, self.costs.sync_ps - self.flight_ps), after=start)
        self.told = _ready(self, name, late, self.row_columns if name == "dispatch" else self.result_columns)
        return start

    def counts(self, begun: I32) -> I32:
        return begun  # READY has them

    def barrier_after(self, name: str, ends: str, start: I32, sends: Batch) -> I32:
        here = self.join(f"{name}.here", start, tiles=sends.tile) if isinstance(sends, Returns) else self.rows_here(start)
        self.wait_tiles(here, self.told)
        return self.delay(ends, max(0, self.costs.sync_ps - self.flight_ps - self.visible_ps), after=here)


def _paper(layer: LayerBuilder, options: Options) -> None:
    """DeepEP V2's paper form behind READY in both operators."""
    _ready(layer, "dispatch", None, layer.row_columns)
    layer.dispatch_puts()
    finished = one_after_another(layer)
    _ready(layer, "combine", finished, layer.result_columns)
    layer.wait_first(layer.combine_puts(Discipline.PROGRAM_ORDER), finished)


FACTS = replace(
    deepep_v2.FACTS,
    source="INC_Sync (mkbk-with-circle/INC_Sync, 2026-09 draft) on DeepEP V2; docs/design/0041-beyond-the-papers.md",
    reach=Reach(switch=GATES),
    shown=Shown("#115566"),
    today=False,  # no switch of today sums READY or holds rows back
)
kernels("sync-switch", FACTS, paper=_paper)(_Synced)


DYSHARP = replace(
    INSIDE,
    source="INC_Sync on DySHARP (arXiv 2605.05607); docs/design/0041-beyond-the-papers.md",
    reach=Reach(switch=f"{INSIDE.reach.switch}; {GATES}"),
    shown=Shown("#66AA55"),
)


@system("sync-dysharp", DYSHARP)
def _plan_dysharp(layer: LayerBuilder, options: DysharpOptions) -> None:
    """DySHARP whose rows wait in the switch for READY with the counts, not at their sources for an exchange of counts."""
    dispatch, combine = layer.windows(DYMULTIMEM, options.dispatch_window, options.combine_window)
    counts = layer.routing.placement.slots_per_gpu if layer.direction == "fwd" else 0
    _ready(layer, "dispatch", None, layer.row_columns, counts)
    sent = layer.dispatch_multicast(dispatch, by_rows=True)
    layer.wait_first(sent, layer.target_fetch(None))
    fused(layer, layer.combine_pulls(Discipline.SMALLEST_KEY, combine).of_useful_row)
