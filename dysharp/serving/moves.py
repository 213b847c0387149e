"""How rows come to the experts of a layer and back: the kernels before the experts and behind them."""

from dysharp.serving.balance import busiest
from dysharp.serving.exchange import BOUNDS, FREE, domain_of, exchange, least_us
from dysharp.serving.work import ELEMENT, Op, Replica

Ops = list[Op]


def moves(r: Replica, tokens: float, everybody: float, experts_us: float) -> tuple[Ops, Ops]:
    """Kernels before and behind the experts. `tokens`: of a step of an attention group, `everybody`: of all groups.

    A layout without attention groups has all tokens everywhere, and sums. One with groups and EP dispatches and combines. One with groups and
    experts that are cut gathers all tokens, and scatters sums. The busiest expert GPU gets and sends most rows, and the others wait for it.
    """
    layout = r.layout
    row = ELEMENT * r.model.hidden
    sends = layout.dp > 1 and layout.ep > 1
    if r.ep_system == FREE:
        return [], []
    if layout.dp == 1:
        return [], [r.all_reduce("FFN all-reduce", tokens)]
    if not sends:
        gathered, scattered = (r.rates.collective(kind, layout.stage_gpus, row * everybody) for kind in ("all_gather", "reduce_scatter"))
        return [Op("dispatch", gathered)], [Op("combine", scattered)]
    shared = [Op("combine", r.rates.collective("all_gather", layout.tp, row * tokens))] if layout.tp > 1 else []
    if r.ep_system in BOUNDS and layout.ep <= domain_of(r):
        return [Op("dispatch", least_us(r, tokens / layout.tp, experts_us), 0)], shared
    moved = exchange(r, tokens / layout.tp, busiest(r, everybody))
    return [Op("dispatch", moved.dispatch, moved.kernels // 2)], [Op("combine", moved.combine, moved.kernels // 2), *shared]
