"""Time of a gated delta net (arXiv 2412.06464) and of Mamba-2 (2405.21060) on one GPU: the update of states in decode, chunks of a prompt
in prefill, one after the other or at once; and of the short convolution before it."""

import math
from dataclasses import field

import numpy as np
from numpy.typing import ArrayLike

from dysharp.base import F64, f64, frozen
from dysharp.costs.operators import Constants, hbm_us, launch_us, light_us, memory_kernel_us
from dysharp.specs import Gpu

CHUNK = 64
"""Tokens of a chunk (flash-linear-attention, ops/gated_delta_rule/chunk.py)."""
CHUNK_US = 3.1
"""Time of a chunk whose state waits for the chunk before it. Read off public rows of prefill; the same on Hopper and Blackwell."""
PASSES = 8
"""Kernels of a prefill, each through all rows: two norms, sums of decay, products of keys, triangular inverse, their products, states, outputs (the
same source). FlashInfer has one kernel (flashinfer/gdn_prefill.py)."""
FUSED_BEFORE = 4
"""Light kernels before FlashInfer's one: two norms, the decay's exponential, a cast (vLLM, qwen3_next.py, fi_chunk_gated_delta_rule)."""
CONVOLVED = 8
"""Tokens of a chunk of Triton's convolution (BLOCK_M in vLLM, mamba/ops/causal_conv1d.py, as alibaba/rtp-llm copies it)."""
RESIDENT = 2048 / 128
"""Thread blocks of 128 threads on an SM (CUDA C programming guide, compute capability 9.0 and 10.0)."""
BACKWARD_PASSES, BACKWARD_CHAINS = 10, 2
"""The same of a backward pass, which makes the states again and then takes their gradients from chunk to chunk (chunk_gated_delta_rule_bwd)."""
SCAN_CHUNK, SCAN_PASSES = 128, 5
"""Tokens of a chunk of Mamba-2 (public config.json of Nemotron-3, chunk_size), and its kernels: sums of decay, states of chunks, states passed on,
products of keys and queries, outputs (state-spaces/mamba, ssd_combined.py)."""
SCAN_STATES, SCAN_ROWS = 3, 2
"""Times that states of chunks (written and read in FP32, passed on and read in BF16) and rows (second and last kernel) go through memory."""
SCAN_AGAIN = 3
"""Both in a backward pass over a forward pass: states are made again, their gradients passed back, and rows and their gradients read and written."""
STATE_BYTES = 4
"""FP32 (public config.json of Qwen3.5, mamba_ssm_dtype)."""


@frozen
class DeltaNet:
    """A call on one GPU: `sequences` of `tokens` new tokens each, with this GPU's heads."""

    sequences: float
    tokens: float
    key_heads: float
    value_heads: float
    key_dim: float
    value_dim: float
    scan: bool = field(default=False, kw_only=True)
    """Mamba-2: states of all chunks are made at once, and a kernel passes them on."""

    @property
    def row_bytes(self) -> float:
        """Queries, keys, values and outputs of a token, in BF16."""
        return 2 * (2 * self.key_heads * self.key_dim + 2 * self.value_heads * self.value_dim)

    @property
    def state_bytes(self) -> float:
        """The states of a sequence."""
        return self.value_heads * self.key_dim * self.value_dim * STATE_BYTES


def update_us(gpu: Gpu, constants: Constants, call: DeltaNet) -> float:
    """One new token of each sequence: every state is read and written."""
    return float(memory_kernel_us(gpu, constants, call.sequences * (2 * call.state_bytes + call.row_bytes)))


def gradient_us(gpu: Gpu, constants: Constants, call: DeltaNet) -> float:
    """The backward pass of `prefill_us`."""
    if call.scan:
        return SCAN_AGAIN * _scan_us(gpu, constants, call)
    return prefill_us(gpu, constants, call, BACKWARD_PASSES, BACKWARD_CHAINS)


def prefill_us(gpu: Gpu, constants: Constants, call: DeltaNet, kernels: int = PASSES, waves: int = 1) -> float:
    """Kernels through memory, the states of each sequence once in and out, and states that go from chunk to chunk, `waves` times.

    A head of a sequence is a chain; an SM takes one at a time.
    """
    if call.scan:
        return _scan_us(gpu, constants, call)
    rows = call.sequences * call.tokens * call.row_bytes
    passes = kernels * float(memory_kernel_us(gpu, constants, rows)) + float(hbm_us(gpu, constants, 2 * call.sequences * call.state_bytes))
    chains, chunks = call.sequences * call.value_heads, -(-call.tokens // CHUNK)
    return passes + waves * CHUNK_US * chunks * math.ceil(chains / gpu.n_sms)


def _scan_us(gpu: Gpu, constants: Constants, call: DeltaNet) -> float:
    """Kernels of Mamba-2 through memory: rows, states of chunks, and products of keys and queries of a chunk in FP32, written and read."""
    states, products = SCAN_STATES * call.state_bytes / SCAN_CHUNK, 2 * STATE_BYTES * SCAN_CHUNK * call.key_heads
    moved = call.sequences * call.tokens * (SCAN_ROWS * call.row_bytes + states + products)
    return SCAN_PASSES * light_us(gpu, constants) + float(hbm_us(gpu, constants, moved))


def fused_prefill_us(gpu: Gpu, constants: Constants, call: DeltaNet) -> float:
    """The same work in one kernel behind `FUSED_BEFORE` light kernels."""
    return FUSED_BEFORE * light_us(gpu, constants) + prefill_us(gpu, constants, call, 1)


def convolution_us(gpu: Gpu, constants: Constants, n_bytes: ArrayLike, blocks: ArrayLike = 0.0, again: ArrayLike = 0.0) -> F64:
    """A short convolution that reads and writes `n_bytes`: memory, or the loads and stores of SMs, as in a permutation.

    `again`: bytes that SMs load once more, from the L2 cache: rows before a chunk of `CONVOLVED` tokens.
    `blocks`: thread blocks of a kernel with one for each sequence and channel, of which each takes as long as a light kernel
    (Dao-AILab/causal-conv1d, csrc/causal_conv1d_fwd.cu: the grid is batch x channels).
    """
    size, start = f64(n_bytes), launch_us(gpu, constants)
    issued = (size + f64(again)) / (gpu.n_sms * gpu.boost_MHz * constants["sm.permute_bytes"])
    waves = np.maximum(1.0, f64(blocks) / (gpu.n_sms * RESIDENT))
    return np.maximum(start + np.maximum(hbm_us(gpu, constants, size), issued), start * waves)
