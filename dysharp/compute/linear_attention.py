"""Time of a gated delta net (arXiv 2412.06464) on one GPU: the update of states in decode, chunks of a prompt one after the other in prefill."""

from dataclasses import dataclass

from dysharp.compute.operators import Constants, memory_kernel_us
from dysharp.specs.gpu import Gpu

CHUNK = 64
"""Tokens of a chunk (flash-linear-attention, ops/gated_delta_rule/chunk.py)."""
CHUNK_US = 3.1
"""Time of a chunk whose state waits for the chunk before it. Read off public rows of prefill; the same on Hopper and Blackwell."""
PASSES = 7
"""Kernels of a prefill, each through all rows: norms, sums of decay, products of keys, triangular inverse, their products, states, outputs (the
same source). FlashInfer has one kernel (flashinfer/gdn_prefill.py)."""
BACKWARD_PASSES, BACKWARD_CHAINS = 10, 2
"""The same of a backward pass, which makes the states again and then takes their gradients from chunk to chunk (chunk_gated_delta_rule_bwd)."""
STATE_BYTES = 4
"""FP32 (public config.json of Qwen3.5, mamba_ssm_dtype)."""


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """A call on one GPU: `sequences` of `tokens` new tokens each, with this GPU's heads."""

    sequences: float
    tokens: float
    key_heads: float
    value_heads: float
    key_dim: float
    value_dim: float

    @property
    def row_bytes(self) -> float:
        """Queries, keys, values and outputs of a token, in BF16."""
        return 2 * (2 * self.key_heads * self.key_dim + 2 * self.value_heads * self.value_dim)


def update_us(gpu: Gpu, constants: Constants, call: DeltaNet) -> float:
    """One new token of each sequence: every state is read and written."""
    state = call.value_heads * call.key_dim * call.value_dim * STATE_BYTES
    return float(memory_kernel_us(gpu, constants, call.sequences * (2 * state + call.row_bytes)))


def gradient_us(gpu: Gpu, constants: Constants, call: DeltaNet) -> float:
    """The backward pass of `prefill_us`."""
    return prefill_us(gpu, constants, call, BACKWARD_PASSES, BACKWARD_CHAINS)


def prefill_us(gpu: Gpu, constants: Constants, call: DeltaNet, kernels: int = PASSES, turns: int = 1) -> float:
    """Kernels through memory, and states that go from chunk to chunk, `turns` times. A head of a sequence is a chain; an SM takes one at a time."""
    rows = call.sequences * call.tokens * call.row_bytes
    passes = kernels * float(memory_kernel_us(gpu, constants, rows))
    chains, chunks = call.sequences * call.value_heads, -(-call.tokens // CHUNK)
    return passes + turns * CHUNK_US * chunks * max(1.0, chains / gpu.n_sms)
