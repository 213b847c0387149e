"""Systems of tensor-parallel sub-layers inside steps and serving: what a sub-layer takes beside its GEMMs and norms, from Rows."""

import functools
from collections.abc import Callable

from dysharp.base import ByName, ConfigError, check_word
from dysharp.runs.run import run
from dysharp.serving.work import SubLayerCurve
from dysharp.specs import Cluster, WholeModel, choice
from dysharp.systems.collectives import all_tensor_parallel
from dysharp.training.recipe import SubLayers
from dysharp.workload import SubLayer

SIZES = (1024, 4096, 16384)
"""Tokens of the Rows of serving; between them a straight line, below them the engine's own all-reduce (the paper has prefill alone)."""
NORM_BYTES = 3
"""Times that a norm moves a row: sum and residual read, one written."""
_COORDINATED = {"prelaunch": True, "preaccess": True, "throttle": True}
SERIAL: dict[str, dict[str, bool]] = {"cais": _COORDINATED, "cais-partial": _COORDINATED, "cais-no-coord": {}}
"""Systems whose sum overlaps the next gather, and the options of CAIS-Base, which has barriers between both, with their coordination."""


Width = tuple[float, float]
"""Columns of a GEMM on one GPU: as the sub-layer runs it, and as the step or the engine counts it."""


def _ends(model: WholeModel, tp: int, *, serving: bool) -> tuple[tuple[Width, Width], tuple[Width, Width]]:
    """The GEMMs before and behind each of both exchanges of a layer: (L1, L2).

    MLA's projections to ranks are whole on every GPU; a training step counts them for a GPU's own rows. In a layer with experts the FFN
    between L1 and L2 has, in serving, the columns of a token's experts (tensor parallelism cuts them), and in training those of shared experts
    alone, because rows go to routed experts by EP. Without shared experts the next input projection is behind the first exchange.
    """
    a, layer = model.attention, model.layer
    inner, matrices = model.dense_hidden, model.dense_matrices
    if layer is not None:
        inner, matrices = model.shared_hidden + layer.topk * layer.expert_hidden * serving, layer.n_matrices
    latent = (a.q_rank + a.kv_rank + a.rope_dim) * a.mla
    cut = (a.heads * a.qk_dim * (not a.q_rank) if a.mla else (a.heads + a.kv_heads) * a.qk_dim + a.kv_heads * a.value_dim) / tp
    queries = cut + latent, cut + latent / (1 if serving else tp)
    out, last, first = ((width / tp,) * 2 for width in (a.heads * a.value_dim, inner, inner * (matrices - 1)))
    return ((out, first), (last, queries)) if inner else ((out, queries),) * 2


def _check_tensor_system(system: str, model: WholeModel, tp: int) -> None:
    """Raises ConfigError for an unknown system, and for what its sub-layers do not describe: linear attention, one GPU."""
    check_word(system, all_tensor_parallel(), f"tensor system: found {system[:60]!r}")
    if model.linear is not None:
        raise ConfigError(f"tensor system {system}: found {model.name} with linear attention, expected attention of heads or MLA in all layers")
    if tp < 2:
        raise ConfigError(f"tensor system {system}: found tp={tp}, expected at least 2 GPUs that share a layer")


def _beside(
    system: str, cluster: Cluster, name: str, model: WholeModel, size: tuple[int, int], ends: tuple[Width, Width], normed: float, serial: bool = False
) -> float:
    """Microseconds of a sub-layer of `size` (GPUs, tokens) beside what others count: both GEMMs, and the norm of `normed` of its rows.

    `serial`: the sum has ended before the next gather begins.
    """
    gpus, tokens = size
    options: ByName = {}
    if serial and system in SERIAL:
        system, options = "cais-base", dict(SERIAL[system])
    inner, outer = (max(1, int(run)) for run, _ in ends)
    work = SubLayer(f"{name} of {model.name}", gpus, tokens, model.hidden, inner, outer)
    row = run(system, workload=work, cluster=cluster, gpus=gpus, options=options)
    flops = 2 * tokens * model.hidden * sum(counted for _, counted in ends)
    gemms = flops / (cluster.peak_flops_per_us("bf16") * float(choice("tp.gemm_part").value))
    return max(0.0, row.time_us - gemms - normed * NORM_BYTES * work.size / cluster.hbm_bytes_per_us)


def step_sub_layers(system: str, model: WholeModel, cluster: Cluster, tp: int, tokens: int) -> SubLayers:
    """L1 and L2 forward, L3 and L4 backward, of a micro-batch of `tokens` tokens. A GPU norms its own rows.

    Routed experts part the sum from the next gather: in L2 and L3 of a layer with shared experts, in all four sub-layers of a layer without.
    """
    _check_tensor_system(system, model, tp)
    between = () if model.layer is None else ("L2", "L3") if model.shared_hidden else ("L1", "L2", "L3", "L4")
    one, two = _ends(model, tp, serving=False)
    works = zip(("L1", "L2", "L3", "L4"), (one, two, one[::-1], two[::-1]), strict=True)
    l1, l2, l3, l4 = (_beside(system, cluster, name, model, (tp, tokens), ends, 1 / tp, name in between) for name, ends in works)
    return SubLayers(system, (l1, l2), (l3, l4))


def step_words(system: str, model: WholeModel) -> str:
    """What a step says about the sub-layers of `system`."""
    between = "; around experts the sum and the next gather are apart in time: cais-base, as coordinated" if model.layer and system in SERIAL else ""
    return f"tensor parallelism: {system}, a Row of each sub-layer; the gather of saved inputs is hidden{between}"


def serving_curves(system: str, model: WholeModel, cluster: Cluster) -> Callable[[int], SubLayerCurve]:
    """The curves of prefill by the number of GPUs that share a layer, each made once. Every GPU norms all rows."""
    _check_tensor_system(system, model, 2)

    @functools.cache
    def curve(tp: int) -> SubLayerCurve:
        ends = zip(("L1", "L2"), _ends(model, tp, serving=True), strict=True)
        attention, ffn = (tuple(_beside(system, cluster, name, model, (tp, size), pair, 1.0) for size in SIZES) for name, pair in ends)
        return SubLayerCurve(SIZES, attention, ffn)

    return curve
