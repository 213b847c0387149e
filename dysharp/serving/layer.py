"""One layer of a serving step: `model.operators`, kernel by kernel, with the busiest GPU's experts and what goes between GPUs."""

from collections.abc import Iterator
from functools import lru_cache

from dysharp.base import MiB
from dysharp.costs.layer import OpTime, Routed, cast_us, expanded_rows, kernels, machine_format, moved_bytes, product
from dysharp.model import StepBatch
from dysharp.model.operators import SHARED, Core, LayerOperator, MemoryOp, RowExchange, Sum, Weight, is_routed, operators, served
from dysharp.serving.balance import LEVELS, busiest, levels_of
from dysharp.serving.exchange import BOUNDS, FREE, GATHERS, ep_system_of, exchange, least_us
from dysharp.serving.work import ELEMENT, Loads, Replica

CASTS, CAST_AND_SCALED, UNFUSED = 4, 7.0, 3
"""Kernels that cast and scale the two absorbed weights of FP8 checkpoints, the bytes of a value, and kernels beside the one of positions and cache
(SGLang 0.5.7 on gfx942, deepseek_v2.py: `w_kc.to(torch.bfloat16) * w_scale`; PR #18242)."""

SUMS = 8.0
"""Bytes of the sums of squares of a token's queries and keys, which a norm of all heads needs of every rank (vLLM: MiniMaxText01RMSNormTP.forward_qk,
one kernel and one all-reduce before the norm; SGLang alike)."""

FUSED_SUM: dict[str, dict[int, float]] = {"hopper": {2: 64, 4: 2, 8: 0.5}, "blackwell": {2: 64, 4: 32, 8: 1}}
"""Architecture and GPUs -> MiB up to which vLLM's compiler joins an all-reduce and a norm (0.16, allreduce_rms_fusion.py)."""


def layer_ops(r: Replica, batch: StepBatch, number: int) -> list[OpTime]:
    """The kernels of layer number `number` on one GPU."""
    ops = served(operators(r.model, number, r.layout.cut))
    core = next((op for op in ops if isinstance(op, Core)), None)
    everybody = (batch.tokens if batch.mean is None else batch.mean) * r.layout.dp
    done: list[OpTime] = []
    behind: list[OpTime] = []
    for op in ops:
        if isinstance(op, RowExchange) and op.name == "dispatch":
            experts = _expert_op(r, everybody, ops)
            before, behind = _moves(r, batch.tokens, everybody, experts.us)
            done += [*before, experts]
        elif isinstance(op, RowExchange):
            done += behind
        elif not is_routed(op) and not (isinstance(op, Sum) and op.piece == SHARED):
            done += _kernels(r, op, batch, core)
    return done


def attention_ops(r: Replica, batch: StepBatch, number: int) -> list[OpTime]:
    """Those from the first norm to the sum over the attention group."""
    ops = served(operators(r.model, number, r.layout.cut))
    core = next((op for op in ops if isinstance(op, Core)), None)
    end = next(i for i, op in enumerate(ops) if isinstance(op, Sum))
    return [one for op in ops[: end + 1] for one in _kernels(r, op, batch, core)]


def _kernels(r: Replica, op: LayerOperator, batch: StepBatch, core: Core | None) -> Iterator[OpTime]:
    if isinstance(op, Sum):
        yield r.all_reduce(op.name, batch.tokens)
    elif r.fused_experts and isinstance(op, MemoryOp) and op.name == "router":
        yield OpTime(op.name, r.machine.memory(moved_bytes(r.machine, op, batch.tokens)))
    elif isinstance(op, Weight):
        tokens = expanded_rows(core, batch) if op.expands and core is not None else batch.tokens
        if tokens and op.piece == SHARED and r.casts_absorbed and r.layout.ep == 1:  # one of the routed ones: its bytes
            yield OpTime(op.name, r.machine.stream(r.formats.of(op.part).weight_bytes * op.n * op.k), 0)
        elif tokens:
            one = r.linear(op, tokens)
            yield _beside(r, one) if op.piece == SHARED else one
    else:
        if op.name == "rope and cache" and r.model.attention.qk_norm_joint and r.layout.tp > 1 and isinstance(op, MemoryOp):
            sums = r.machine.all_reduce(r.layout.tp, SUMS * batch.tokens, r.reducers)
            yield OpTime("q and k norm", r.machine.memory(ELEMENT * batch.tokens * op.served / 2) + sums, 2)
        found = (_beside(r, one) if op.piece == SHARED else one for one in kernels(r.machine, op, batch, r.formats))
        fused = r.fused_sums and op.name == "norms" and r.layout.dp * r.layout.pp == 1
        most = FUSED_SUM.get(r.machine.arch, {}).get(r.layout.tp, 0) * MiB if fused else 0
        if ELEMENT * batch.tokens * r.model.hidden <= most:
            found = (one._replace(us=one.us - one.kernels * r.machine.floor, kernels=0) for one in found)
        yield from found
        if isinstance(op, Core) and op.latent and not op.shared and r.casts_absorbed and batch.decodes and r.formats.attention != "bf16":
            values = op.heads * (op.qk_dim - op.rope_dim + op.v_dim) * op.kv_rank
            yield OpTime("absorbed weights", r.machine.memory(CAST_AND_SCALED * values, CASTS + UNFUSED), CASTS + UNFUSED)


def _beside(r: Replica, one: OpTime) -> OpTime:
    """Shared experts on a stream of their own: their launches hide, their bytes and products do not."""
    return one._replace(us=max(0.0, one.us - one.kernels * r.machine.least))


@lru_cache(maxsize=1 << 14)
def touched(experts: float, topk: int, total: int, tokens: float, loads: Loads = ()) -> float:
    """Mean experts out of `experts` with at least one row when `tokens` tokens each choose `topk` of `total` by popularity."""
    weights = loads or LEVELS
    each = [min(1.0, topk / total * weight * len(weights) / sum(weights)) for weight in weights]
    return float(experts * sum(1 - (1 - part) ** tokens for part in each) / len(each))


def _expert_op(r: Replica, tokens: float, ops: tuple[LayerOperator, ...] | None = None) -> OpTime:
    """The experts of the busiest GPU: `tokens` tokens of all GPUs choose experts, which EP spreads and tensor parallelism cuts."""
    layer, layout = r.model.layer, r.layout
    assert layer is not None
    own = [op for op in ops or operators(r.model, r.model.last_moe, layout.cut) if is_routed(op)]
    groups = touched((layer.n_experts + layout.slots) / layout.ep, layer.topk, layer.n_experts, tokens, r.loads)
    rows = tokens * layer.topk / layout.ep * busiest(r, tokens)
    routed, n, time = Routed(rows / max(groups, 1e-9), groups, levels_of(r.loads)), 0, 0.0
    for op in own:
        if isinstance(op, Weight):
            time, n = time + product(r.machine, op, tokens, r.formats, routed), n + 1
            if op is own[0] and machine_format(r.machine, op, r.formats)[1] != "bf16":  # each token once; the activation casts its outputs
                time, n = time + cast_us(r.machine, op, tokens / layout.ep / op.rows, r.formats), n + 1
        elif isinstance(op, MemoryOp) and not r.fused_experts:
            time, n = time + sum(one.us for one in kernels(r.machine, op, StepBatch(), r.formats, routed)), n + op.kernels
    return OpTime("experts", time + r.machine.permute(ELEMENT * (rows + tokens / layout.dp) * layer.hidden), n + 1)


Ops = list[OpTime]


def _moves(r: Replica, tokens: float, everybody: float, experts_us: float) -> tuple[Ops, Ops]:
    """Kernels before and behind the experts. `tokens`: of a step of an attention group, `everybody`: of all groups.

    A layout without attention groups has all tokens everywhere, and sums. One with groups and EP dispatches and combines. A layout with groups and
    experts that are cut gathers all tokens, and scatters sums. The busiest expert GPU gets and sends most rows, and the others wait for it.
    """
    layout, row = r.layout, ELEMENT * (r.model.layer or r.model).hidden
    sends = layout.dp > 1 and layout.ep > 1
    if r.ep_system == FREE:
        return [], []
    if layout.dp == 1:
        mapped = r.ep_kernels if layout.ep > 1 else 0
        return [OpTime("router", r.machine.small(mapped), mapped)], [r.all_reduce("FFN all-reduce", tokens)]
    if not sends or (r.ep_system not in BOUNDS and ep_system_of(r) == GATHERS):
        gathered, scattered = (r.machine.collective(kind, row * everybody, layout.stage_gpus) for kind in ("all_gather", "reduce_scatter"))
        return [OpTime("dispatch", gathered)], [OpTime("combine", scattered)]
    shared = [OpTime("combine", r.machine.collective("all_gather", row * tokens, layout.tp))] if layout.tp > 1 else []
    if r.ep_system in BOUNDS:
        return [OpTime("dispatch", least_us(r, tokens / layout.tp, experts_us), 0)], shared
    moved = exchange(r, tokens / layout.tp, busiest(r, everybody))
    return [OpTime("dispatch", moved.dispatch, moved.kernels // 2)], [OpTime("combine", moved.combine, moved.kernels // 2), *shared]
