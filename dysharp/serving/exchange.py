"""Dispatch and combine of one MoE layer of a replica (`costs.exchange`): which system, how wide a row is, which tokens take low-latency kernels.

`tokens`: tokens that one GPU sends. Each GPU of a group with requests of its own sends its own tokens; under tensor parallel attention the GPUs of a
group share them.
"""

from dataclasses import replace
from functools import lru_cache

from dysharp.base import ConfigError, check_word, show
from dysharp.costs import exchange as costs
from dysharp.costs.exchange import ExchangeTimes, Peers, Rows
from dysharp.model import ROW_BYTES, Formats
from dysharp.serving.work import Replica

LL_MOST_TOKENS = 1024
"""Tokens of one GPU up to which engines take low-latency kernels (DeepEP: NUM_MAX_NVL_PEERS and the buffers of its users)."""
GATHERS = "allgather"
NORMAL = "deepep-normal"
EP_SYSTEMS = ("deepep", "deepep-ll", NORMAL, "trtllm-a2a", GATHERS, "alltoall")
"""`deepep`: low-latency kernels up to `LL_MOST_TOKENS`, else normal ones; the two behind it have one kind alone."""
FREE, IN_SWITCH, HUB = "free", "dysharp", "moe-hub"
BOUNDS = {FREE: costs.FREE, IN_SWITCH: costs.IN_SWITCH, HUB: costs.HUB}
"""EP systems that are lower bounds, as `costs.exchange` names them."""


def row_bytes(replica: Replica) -> tuple[float, float]:
    """Bytes of a row on its way to its experts and back."""
    assert replica.model.layer is not None
    hidden, (sent, back) = replica.model.layer.hidden, shipped(replica).rows()
    return hidden * ROW_BYTES[sent], hidden * ROW_BYTES[back]


def shipped(replica: Replica) -> Formats:
    """The formats of a replica, which say its rows, too. TensorRT-LLM's kernels inside a domain send NVFP4 where experts have it, else BF16
    (TensorRT-LLM fused_moe_wide_ep.py: use_postquant_alltoall)."""
    formats, inside = replica.formats, replica.layout.ep <= replica.machine.domain
    sent, back = formats.rows(replica.machine.products)
    if inside and not formats.sent and ep_system_of(replica) == "trtllm-a2a":
        sent = "nvfp4" if formats.experts == "nvfp4" else "bf16"
    return replace(formats, sent=sent, back=back)


def ep_system_of(replica: Replica) -> str:
    """The EP system of a replica: the named one, else NCCL over PCIe, gathers on links between pairs of GPUs (AMD), TensorRT-LLM's inside a domain of
    more than 8 GPUs, else DeepEP.

    Raises `ConfigError` for an unknown name, and for kernels over NVLink where there is none.
    """
    name, cluster = replica.ep_system, replica.machine.cluster
    if cluster.own_gpu.pcie:
        if name not in ("", "alltoall", GATHERS, *BOUNDS):
            raise ConfigError(f"EP system {show(name)}: found no NVLink in cluster {cluster.name}, expected alltoall or allgather")
        return GATHERS if name == GATHERS else "alltoall"
    if not cluster.n_switches:
        if name not in ("", GATHERS, *BOUNDS):
            raise ConfigError(f"EP system {show(name)}: no kernels for {cluster.name}, whose GPUs have links in pairs; expected allgather")
        return GATHERS
    if not name or name in BOUNDS:
        name = "trtllm-a2a" if cluster.domain_gpus > 8 else "deepep"
    check_word(name, EP_SYSTEMS, f"EP system {show(name)}: no closed form for serving")
    # over domains `costs.exchange` has DeepEP in place of TensorRT-LLM's
    return NORMAL if (replica.layout.ep > replica.machine.domain if name == "trtllm-a2a" else name == "deepep" and replica.ep_by_flag) else name


def _peers_of(replica: Replica) -> Peers:
    """The GPUs that share experts."""
    return Peers(replica.layout.ep, slots=replica.layout.slots)


def exchange(replica: Replica, tokens: float, most: float = 1.0) -> ExchangeTimes:
    """Dispatch and combine of `tokens` tokens of every GPU; the busiest one gets and sends `most` times the mean. Raises `ConfigError`."""
    layer, machine, name = replica.model.layer, replica.machine, ep_system_of(replica)
    assert layer is not None
    sent, back = row_bytes(replica)
    if replica.layout.ep > machine.domain and machine.cluster.scale_out is None:
        raise ConfigError(f"cluster {machine.cluster.name}: found EP{replica.layout.ep} beyond one NVLink domain and no [scale_out] network")
    least, system = LL_MOST_TOKENS if name == "deepep" else 0, "deepep" if name == NORMAL else name
    return costs.exchange(machine, layer, _peers_of(replica), Rows(tokens, sent, back, most), system, low_latency=least)


def least_us(replica: Replica, tokens: float, experts_us: float) -> float:
    """Least time of both beside `experts_us` of experts with hardware that nobody sells."""
    assert replica.model.layer is not None
    rows = Rows(tokens, *row_bytes(replica))
    return costs.least_us(replica.machine, replica.model.layer, _peers_of(replica), rows, BOUNDS[replica.ep_system], experts_us)


@lru_cache(maxsize=1 << 12)
def _nics_us(replica: Replica, tokens: float) -> float:
    """Microseconds of a step with `tokens` tokens of each attention group in which the NICs of a GPU pass rows."""
    far = replica.layout.dp > 1 and replica.layout.ep > replica.machine.domain
    sends = far and replica.ep_system not in BOUNDS and ep_system_of(replica) != GATHERS
    return exchange(replica, tokens / replica.layout.tp).nics * replica.model.moe_layers if sends else 0.0


def beside_caches_us(replica: Replica, tokens: float, step: float, caches: float) -> float:
    """What KV caches that take a GPU's NICs `caches` microseconds add to such a step: of what passes at the same time, one waits for the other. The
    caches take as much longer."""
    return caches * min(1.0, _nics_us(replica, tokens) / step) if caches else 0.0
