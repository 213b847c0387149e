"""hub-sharp: MoE-Hub's address-free stores with a list of regions, multicast and summed in DySHARP's switches.

Combine may reduce pushes: every GPU contributes its sum of a token, and the switch adds the contributions on their way to the source.
"""

import numpy as np

from dysharp.program import RESPONSES, Discipline, Framing, Kind, frozen, sessions_of_table
from dysharp.specs import choice_int, choice_str
from dysharp.systems import SUMS, Costs, Facts, Moves, Reach, Shown, system
from dysharp.systems.building import STORE, LayerBuilder, Transfers, fused
from dysharp.systems.building.windows import sessions_that_fit
from dysharp.systems.moe_hub import FACTS as MOE_HUB


def _combine_pushes(layer: LayerBuilder, places: int) -> Transfers:
    """A contribution for each (token, GPU) pair, to the sum of its token. The source's own part is a store on the source.

    `places`: sums of one source that the switch holds at once; 0 = as many as fit the reduction buffers of its ports in every case, as for pulls.
    Contributions have the class of the responses that they replace: behind multicasts they would wait for outputs that they
    do not need (docs/design/0013, Push form). Each GPU serves the sources in turn, all GPUs in the same order, so that the contributions of
    a token meet soon.
    """
    b, p, source = layer.b, layer.p, layer.p.source
    far = p.gpu != source
    _, first, sum_of_far = np.unique(p.token[far], return_index=True, return_inverse=True)
    lead = np.flatnonzero(far)[first]  # the first other GPU of each token that has one
    has_row = ~far
    has_row[lead] = True
    rank = np.cumsum(has_row) - 1
    row = np.where(far, rank[lead[sum_of_far]][np.cumsum(far) - 1] if len(lead) else 0, rank)
    rows, _ = layer.gathering_rows("partial", source[has_row], layer.back_bytes, p.token[has_row])
    fits = sessions_that_fit(layer.model, layer.cluster, layer.combine_aux, table=sessions_of_table(layer.cluster))
    session0 = b.sums(source[lead], np.bincount(sum_of_far, minlength=len(lead)), places or fits)
    issuer, op = layer.per_gpu(Discipline.SMALLEST_KEY, "combine"), np.empty(len(p.token), np.int32)
    for kind, name, how, mine in ((Kind.PUSH_REDUCE, "combine.push", RED_ROWSP, far), (Kind.PUT, "combine.own", STORE, ~far)):
        template = layer.transfer(name, kind, "combine", "sum", layer.result, "partial", cls=RESPONSES, framing=how)
        columns = {"issuer": issuer[p.gpu[mine]], "key": p.token[mine], "prio": p.token[mine] % layer.tokens}
        session = session0 + sum_of_far if kind is Kind.PUSH_REDUCE else -1
        op[mine] = layer.put(template, p.gpu[mine], source[mine], rows[row[mine]], session=session, **layer.result_columns, **columns)
    return Transfers(op=op, node=p.gpu, to=source, unit=np.arange(len(op)), unit_rows=layer.p.rows)


ROWSP_MC = Framing("st.rowsp.mc", targets_per_ext=8)
"""A header with row id and offset, then MallocIDs of 16 bits."""
RED_ROWSP = Framing("red.rowsp")
"""A header with origin, token and expected count."""


@frozen
class Options:
    """`dispatch_window`, `combine_window`: tokens in flight per source GPU, 0 = automatic (building/windows.py).

    `reduction`: sources "pull" sums through the switch, or GPUs "push" contributions to them (docs/design/0013, Push form). `sum_places`: sums
    of one source that the switch holds at once (push), 0 = as many as fit the reduction buffers of its ports in every case.
    `al_misses`: misses of the AL TLB that a hub has under way at once; 0 = as many as rows at line rate need.
    `compute` = False leaves the GEMMs out: pure communication, a row is ready when it has arrived.
    """

    dispatch_window: int = choice_int("hub_sharp.dispatch_window")
    combine_window: int = choice_int("hub_sharp.combine_window")
    al_misses: int = choice_int("hub.al_misses")
    reduction: str = choice_str("hub_sharp.reduction")
    sum_places: int = choice_int("hub_sharp.sum_places")
    compute: bool = True


FACTS = Facts(
    source="MoE-Hub (arXiv 2605.05888) and DySHARP (arXiv 2605.05607) combined; docs/design/0013-moe-hub.md",
    options=Options,
    moves=Moves("multicast"),
    costs=Costs(permutes=0, fused=True, drops="announcements of totals, entries of the row map that a hub has to write back"),
    reach=Reach(stays=MOE_HUB.reach.stays, switch=SUMS),
    shown=Shown("#337700"),
)


@system("hub-sharp", FACTS)
def plan(layer: LayerBuilder, options: Options) -> None:
    """One store per token names its regions. The row tables of the hubs place it; a pull reads their map in memory, a push needs none."""
    dispatch, combine = layer.windows(ROWSP_MC, options.dispatch_window, options.combine_window)
    layer.dispatch_multicast(dispatch, ROWSP_MC, by_rows=True, asks=False)
    if options.reduction == "push":
        back = _combine_pushes(layer, options.sum_places)
    else:
        back = layer.combine_pulls(Discipline.SMALLEST_KEY, combine, ROWSP_MC)
    fused(layer, back.of_useful_row)
