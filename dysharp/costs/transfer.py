"""Closed forms of expert-parallel kernels, in microseconds: DeepEP normal and low latency, TensorRT-LLM all-to-all,
MoRI.

They are a second opinion beside runs of Programs. They have no ops, only rates of SMs and links and costs per token.
Each function is pure and takes numbers or arrays. `tokens`: tokens per GPU. `copies`: mean distinct GPUs of a token,
with the source GPU (`workload.expected_copies` for uniform routing). Source of the mechanisms: the public kernels
(deepseek-ai/DeepEP V1, NVIDIA/TensorRT-LLM).
"""

import numpy as np
from numpy.typing import ArrayLike

from dysharp.base import F64, f64
from dysharp.costs.collectives import link_us, round_trip_us, sync_us
from dysharp.costs.operators import Constants, arch_of, hbm_us, launch_us, overlap
from dysharp.specs import Gpu
from dysharp.specs.cluster import XGMI_ALONE

CHUNK_TOKENS = 6.0
"""Tokens that a DeepEP ring releases at once on 8 GPUs (the tuned value of DeepEP's tests)."""
NORMAL_BARRIERS = 2.0
"""Barriers of a DeepEP normal call with a cached handle."""
LL_HEADER_BYTES = 16.0
"""Header of a low-latency message."""
XGMI_LINKS = 7
"""xGMI links of an AMD GPU, one to each other GPU of its node."""
TRT_LAUNCHES = 3
"""Kernels of one call of TensorRT-LLM's two-sided all-to-all: fill in metadata, move rows, and one last kernel that
places indices, marks empty slots or sums."""
FIFO_GROUPS = 8
"""Warps of a block of its two-sided kernel. A channel has one of them for each peer, and blocks of its own (MAX_GROUP_COUNT_PER_BLOCK)."""
FIFO_SENDERS = 4
"""SMs for each block that sends: half of the SMs have blocks, and half of these receive (computeMoeCommChannelCount)."""


def deepep_dispatch_us(
    gpu: Gpu, constants: Constants, tokens: ArrayLike, copies: ArrayLike, row_bytes: ArrayLike, sms: ArrayLike, gpus: ArrayLike
) -> F64:
    """DeepEP normal dispatch with a cached handle: barriers, then the rings of `sms / 2` DeepEP channels.

    - One SM of a channel sends, one receives. The warps of a sending SM form one group per destination. A group walks
      all tokens of the channel and copies one row after the other.
    - All groups share the bytes per second of the SM. The pace is the slower of groups and bytes.
    - The receiver takes a chunk when it is complete, so one chunk is paid twice.
    - All channels share the link. Only remote copies cross it.
    """
    t, r, row = map(f64, (tokens, copies, row_bytes))
    look = constants["deepep.token_us"]
    group = look + r / f64(gpus) * constants["deepep.copy_us"]
    each = look + r * row / (1e3 * constants["sm.copy_GBps"])
    per_channel = t / (f64(sms) / 2)
    work = per_channel * np.maximum(group, each) + np.minimum(per_channel, CHUNK_TOKENS) * each
    return _floor_us(gpu, constants, gpus) + overlap(work, _scatter_us(gpu, constants, t * r * row, gpus), constants["sm.overlap"])


def deepep_combine_us(
    gpu: Gpu, constants: Constants, tokens: ArrayLike, copies: ArrayLike, row_bytes: ArrayLike, sms: ArrayLike, gpus: ArrayLike
) -> F64:
    """DeepEP normal combine: every received row goes back as BF16. The source sums the copies of a token in FP32.

    A warp reduces one token at a time, and the warps of an SM work at the same time. So the first result takes
    `deepep.tokens_in_flight` times the time per token of the SM.
    """
    t, r, row = map(f64, (tokens, copies, row_bytes))
    each = constants["deepep.reduce_token_us"] + r * row / (1e3 * constants["sm.copy_GBps"])
    per_channel = t / (f64(sms) / 2)
    work = (per_channel + constants["deepep.tokens_in_flight"]) * each
    return _floor_us(gpu, constants, gpus) + overlap(work, _scatter_us(gpu, constants, t * r * row, gpus), constants["sm.overlap"])


def notify_us(constants: Constants, doublings: ArrayLike) -> F64:
    """Notify of a call between domains with a cached handle: barriers of a rail over 2 ** `doublings` domains, and the rest of the notify."""
    return f64(NORMAL_BARRIERS * constants["internode.barrier_us"] * np.asarray(doublings) + constants["internode.notify_us"])


def _floor_us(gpu: Gpu, constants: Constants, gpus: ArrayLike) -> F64:
    return constants["deepep.call_us"] + NORMAL_BARRIERS * sync_us(gpu, constants, gpus)


def _scatter_us(gpu: Gpu, constants: Constants, all_bytes: ArrayLike, gpus: ArrayLike) -> F64:
    """Time of rows to all GPUs at once: the remote part of `all_bytes` on the link."""
    g = f64(gpus)
    return link_us(gpu, constants, f64(all_bytes) * (g - 1) / g)


def ll_dispatch_us(
    gpu: Gpu, constants: Constants, tokens: ArrayLike, topk: ArrayLike, row_bytes: ArrayLike, experts: ArrayLike, gpus: ArrayLike
) -> F64:
    """DeepEP low-latency dispatch, send and receive: one message per (token, expert) into fixed slots, then counts.

    The grid has ceil(experts / warp groups per SM) SMs. Each SM casts and sends its part of the tokens, and polls and
    packs its experts.
    """
    t, k, row, e = map(f64, (tokens, topk, row_bytes, experts))
    work = t / ll_grid(gpu, e) * constants["ll.token_us"]
    g = f64(gpus)
    link = link_us(gpu, constants, t * k * (row + LL_HEADER_BYTES) * (g - 1) / g) / constants["ll.dispatch_link"]
    return _ll_floor_us(gpu, constants, e, g) + np.maximum(work, link)


def ll_combine_us(
    gpu: Gpu, constants: Constants, tokens: ArrayLike, topk: ArrayLike, row_bytes: ArrayLike, experts: ArrayLike, gpus: ArrayLike
) -> F64:
    """DeepEP low-latency combine, send and receive: one BF16 row per (token, expert) to the source, which sums."""
    t, k, row, e = map(f64, (tokens, topk, row_bytes, experts))
    g = f64(gpus)
    link = link_us(gpu, constants, t * k * row * (g - 1) / g) / constants[f"{arch_of(gpu)}.ll_combine_link"]
    copied = t * k * row / (ll_grid(gpu, e) * 1e3 * constants["sm.copy_GBps"])
    return _ll_floor_us(gpu, constants, e, g) + np.maximum(copied, link)


def ll_grid(gpu: Gpu, experts: ArrayLike) -> F64:
    """SMs of a low-latency kernel: one for each expert, or for as many experts as warp groups need to share one (DeepEP internode_ll.cu)."""
    e = f64(experts)
    return np.ceil(e / np.ceil(e / gpu.n_sms))


def _ll_floor_us(gpu: Gpu, constants: Constants, experts: F64, gpus: F64) -> F64:
    """Device time without gaps between kernels: flight of messages, flight of counts, and one flag per expert."""
    return sync_us(gpu, constants, gpus) * (2 + experts * constants["ll.expert_part"])


def alltoall_one_sided_us(
    gpu: Gpu, constants: Constants, tokens: ArrayLike, copies: ArrayLike, row_bytes: ArrayLike, gpus: ArrayLike, *, reads: bool = False
) -> F64:
    """TensorRT-LLM one-sided NVLink all-to-all. Dispatch: put copies in known places, then one barrier.

    Combine `reads`: one barrier, then the source loads the copies from its peers; the first load is a round trip. Both
    have one small kernel more than the two-sided form, for the receiver's side. `copies` counts the source's own copy,
    which crosses no link.
    """
    t, r, row = map(f64, (tokens, copies, row_bytes))
    work = t * (constants["trt.token_us"] + r * row / (1e3 * gpu.n_sms * constants["sm.copy_GBps"]))
    link = link_us(gpu, constants, t * (r - 1) * row)
    first = round_trip_us(gpu) if reads else 0.0
    return launch_us(gpu, constants) + _trt_floor_us(gpu, constants, gpus) + first + np.maximum(work, link)


def fifo_copy_us(gpu: Gpu, constants: Constants, row_bytes: ArrayLike, gpus: ArrayLike, *, fields: int = 1, low_precision: bool = False) -> F64:
    """Time in which all sending warps of TensorRT-LLM's two-sided kernel bring one copy into a FIFO, on average.

    A warp has one copy at a time, and the warps of an SM share its bytes per second. The kernel has as many whole channels as SMs for their blocks.
    `fields`: tensors of a row, such as values and scales. `low_precision`: the warps quantise a copy and dequantise it, too.
    """
    row, g = f64(row_bytes) / (1e3 * constants["trt.sm_GBps"]), f64(gpus)
    blocks = np.ceil(g / FIFO_GROUPS)
    channels = np.maximum(1.0, np.floor(gpu.n_sms // FIFO_SENDERS / blocks))
    each = constants["trt.copy_us"] + (constants["trt.lowprec_us"] if low_precision else 0.0) + row
    return np.asarray(np.maximum(each / (channels * g), (fields * constants["trt.field_us"] + row) / (channels * blocks)))


def alltoall_two_sided_us(
    gpu: Gpu, constants: Constants, tokens: ArrayLike, copies: ArrayLike, row_bytes: ArrayLike, gpus: ArrayLike, copy_us: ArrayLike,
    summed_bytes: ArrayLike = 0.0,
) -> F64:  # fmt: skip
    """TensorRT-LLM two-sided NVLink all-to-all through FIFOs, `copy_us` a copy (`fifo_copy_us`), the own one too.

    Combine writes and reads `summed_bytes` of memory for each token: a cleared place for every expert, and the sum.
    """
    t, r, row = map(f64, (tokens, copies, row_bytes))
    moved = np.maximum(t * r * f64(copy_us), link_us(gpu, constants, t * (r - 1) * row))
    return _trt_floor_us(gpu, constants, gpus) + moved + hbm_us(gpu, constants, t * f64(summed_bytes))


def summed_bytes(row_bytes: ArrayLike, topk: ArrayLike) -> F64:
    """Bytes that the places of a token take through memory in TensorRT-LLM's two-sided Combine: cleared, read, and one sum written."""
    return f64(row_bytes) * (2 * f64(topk) + 1)


def mori_dispatch_us(gpu: Gpu, constants: Constants, tokens: ArrayLike, copies: ArrayLike, row_bytes: ArrayLike, gpus: ArrayLike) -> F64:
    """MoRI's Dispatch without a switch: compute units copy rows, and the link of a pair carries the rows of that pair."""
    t, r, row = map(f64, (tokens, copies, row_bytes))
    work = r * constants["mori.copy_us"] / gpu.n_sms
    return constants["mori.dispatch_us"] + round_trip_us(gpu) + t * np.maximum(work, _pair_us(gpu, constants, r * row, gpus))


def mori_combine_us(
    gpu: Gpu, constants: Constants, tokens: ArrayLike, copies: ArrayLike, row_bytes: ArrayLike, gpus: ArrayLike, moved_bytes: ArrayLike
) -> F64:
    """MoRI's Combine: a copy of `moved_bytes` (read and written) per received row, a barrier, reads of rows by their source."""
    t, r, row, moved = map(f64, (tokens, copies, row_bytes, moved_bytes))
    issued = r * moved / (gpu.n_sms * gpu.boost_MHz * constants["sm.permute_bytes"])
    copied = np.maximum(issued, hbm_us(gpu, constants, r * moved))
    return constants["mori.combine_us"] + round_trip_us(gpu) + t * (copied + _pair_us(gpu, constants, r * row, gpus))


def _pair_us(gpu: Gpu, constants: Constants, all_bytes: ArrayLike, gpus: ArrayLike) -> F64:
    """Time in which the link of a pair carries its equal share of `all_bytes`, which go to all GPUs."""
    rate = 1e3 * gpu.link_GBps / XGMI_LINKS * np.where(np.asarray(gpus) == 2, XGMI_ALONE, constants["mori.link_part"])
    out: F64 = f64(all_bytes) / f64(gpus) / rate
    return out


def alltoall_prepare_us(gpu: Gpu, constants: Constants, tokens: ArrayLike, gpus: ArrayLike) -> F64:
    """Time of the exchange of counts and indices before a two-sided all-to-all."""
    return _trt_floor_us(gpu, constants, gpus) + f64(tokens) * constants["trt.token_us"]


def _trt_floor_us(gpu: Gpu, constants: Constants, gpus: ArrayLike) -> F64:
    """Time of the launches of a call and of one exchange of flags."""
    return TRT_LAUNCHES * launch_us(gpu, constants) + sync_us(gpu, constants, gpus)
