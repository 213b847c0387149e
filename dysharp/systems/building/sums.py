"""Combine by reducing pushes: every GPU contributes its sum of a token, and the switch adds the contributions on their way to the source."""

import numpy as np

from dysharp.isa.framing import Framing
from dysharp.program import Discipline, Kind, Template
from dysharp.program.constants import RESPONSES
from dysharp.systems.building.batch import Transfers
from dysharp.systems.building.layer import STORE, LayerBuilder
from dysharp.systems.building.windows import sessions_that_fit


def combine_pushes(layer: LayerBuilder, framing: Framing, places: int) -> Transfers:
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
    row0, _ = layer.gathering_rows("partial", source[has_row], layer.back_bytes, p.token[has_row])
    fits = sessions_that_fit(layer.model, layer.cluster, layer.combine_aux)
    session0 = b.sums(source[lead], np.bincount(sum_of_far, minlength=len(lead)), places or fits)
    issuer, op = layer.per_gpu(Discipline.SMALLEST_KEY, "combine"), np.empty(len(p.token), np.int32)
    for kind, name, how, mine in ((Kind.PUSH_REDUCE, "combine.push", framing, far), (Kind.PUT, "combine.own", STORE, ~far)):
        at = b.framing(how)
        op[mine] = layer.put(
            Template(name, kind, "combine", "sum", RESPONSES, framing=at, src=layer.result, dst="partial"),
            p.gpu[mine],
            source[mine],
            row0 + row[mine],
            issuer=issuer[p.gpu[mine]],
            bytes=layer.back_bytes,
            key=p.token[mine],
            prio=p.token[mine] % layer.tokens,
            aux_bytes=layer.combine_aux,
            session=session0 + sum_of_far if kind is Kind.PUSH_REDUCE else -1,
        )
    return Transfers(op=op, node=p.gpu, to=source, unit=np.arange(len(op)), unit_rows=layer.p.rows)
