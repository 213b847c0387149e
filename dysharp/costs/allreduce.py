"""Kernels of collectives other than NCCL's, as lists of steps, and their closed form.

`systems.building.collectives.kernels` builds Programs from the same lists. The public sources at `KERNELS` give the steps and
their order. No constant is fitted here.
"""

from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from dysharp.base import F64, Texts, f64, read_toml
from dysharp.costs.collectives import flight_us, link_us, round_trip_us, sync_us
from dysharp.costs.operators import Constants, hbm_us, launch_us, memory_kernel_us
from dysharp.specs import Gpu, choice_int

KERNELS: dict[str, Texts] = {name: tuple(steps) for name, steps in read_toml(Path(__file__).with_suffix(".toml")).items()}
"""Steps by kernel. On one GPU, a step starts when the previous step ends.

| step | meaning |
|---|---|
| launch | start and drain of a kernel |
| copy | a kernel copies the vector into a shared buffer, or the result out of the buffer |
| stage | the copy inside a kernel |
| flags | a relaxed flag to every GPU, polled; GPUs run in step, so the step takes the flight time only |
| sync | a flag behind a fence of system scope: the round trip of a store, and the flight of the flag; GPUs run in step |
| meet | a flag exchange of GPUs that come at different times (`ARCH.sync_us`, mostly the wait for the last GPU) |
| pull | the sum of all vectors by `multimem.ld_reduce` |
| pull own | the sum of the own share by `multimem.ld_reduce` |
| multicast | the own share by `multimem.st` to all GPUs |
| pull+multicast | the sum of the own share by `multimem.ld_reduce`, sent to all GPUs by `multimem.st` |
| get+put | load the own share from every peer, store its sum to every peer |
| get all | load the vector of every peer |
| get own | load the own share of the vector of every peer |
| get sums | load the share that a peer has summed, from every peer |
| put all | store the own vector to every peer, which polls the data |

| kernels | source |
|---|---|
| one-shot, two-shot polled, two-shot | NCCL contrib/custom_algos/allreduce |
| multimem | TokenWeave csrc/tokenweave_artifact_kernels.cu |
| megatron | Megatron-LM megatron/core/inference/communication/torch_symm_triton/variable_collectives.py |
| torch | PyTorch CUDASymmetricMemoryOps.cu, with the buffer of vLLM's symm_mem.py (a copy before and behind) |
| vllm | vLLM csrc/custom_all_reduce.cuh |
| trtllm | TensorRT-LLM allReduceFusionKernels.cu (one-shot: Lamport) |
"""
IN_FLIGHT = {"torch multimem": 8 * 1024 * 16, "vllm one-stage": 36 * 512 * 16, "vllm two-stage": 36 * 512 * 16}
"""Bytes that a GPU has under way of each load: the most blocks, their threads and the 16 bytes of a thread, which waits for them (same sources).
Of "torch two-shot" two commits have different limits (24 blocks of 512 or 1024 threads), and rows do not name theirs: no limit."""
STORES = ("multicast", "pull+multicast", "get+put", "put all")
NO_LOADS = ("multicast", "put all")
"""Steps that end with a store. They end when the store is acknowledged; a following `sync` includes that time.
Flags at the end of a kernel are acknowledged too."""


def staggered(steps: Texts) -> Texts:
    """A kernel whose GPUs come at different times: the first flags are a whole exchange."""
    at = steps.index("flags")
    return (*steps[:at], "meet", *steps[at + 1 :])


def _moved_bytes(step: str, n: ArrayLike, size: ArrayLike) -> F64:
    """Payload of a step on the links of one GPU, in the direction with more bytes. `n`: GPUs. `size`: bytes per GPU."""
    n, size = f64(n), f64(size)
    share, peers = size / n, n - 1
    factors = {
        "pull": peers * size, "pull own": size, "multicast": size, "pull+multicast": size + share, "get+put": 2 * peers * share,
        "get own": peers * share, "get sums": peers * share, "get all": peers * size, "put all": peers * size,
    }  # fmt: skip
    return np.asarray(factors.get(step, np.zeros(np.broadcast_shapes(n.shape, size.shape))))


def kernel_allreduce_us(gpu: Gpu, constants: Constants, kernel: str, n_gpus: ArrayLike, n_bytes: ArrayLike, in_flight: ArrayLike) -> F64:
    """Time in microseconds of an all-reduce of `n_bytes` per GPU by `kernel` of `KERNELS`.

    `in_flight`: most bytes that a GPU has under way of each load (0: no limit).
    """
    n, size, window = map(f64, (n_gpus, n_bytes, in_flight))
    flight, round_trip = flight_us(gpu), round_trip_us(gpu)
    steps = KERNELS[kernel]
    plain: dict[str, F64 | float] = {"launch": launch_us(gpu, constants), "flags": flight, "meet": sync_us(gpu, constants, n)}
    plain |= {"copy": memory_kernel_us(gpu, constants, 2 * size), "stage": hbm_us(gpu, constants, 2 * size)}
    time = acknowledged = np.zeros(np.broadcast_shapes(n.shape, size.shape, window.shape))
    for step, following in zip(steps, (*steps[1:], ""), strict=True):
        if step in plain:
            time = time + plain[step]
        elif step == "sync":
            time = time + round_trip + flight
        else:
            loaded = size if step in ("pull", "get all") else size / n
            rounds = np.where(window > 0, np.ceil(loaded / np.maximum(window, 1)), 1.0)
            if step not in NO_LOADS:
                time = time + round_trip
            # A train takes its place in the window until its bytes have crossed the peer's link and the own one.
            round_us = round_trip + 2 * link_us(gpu, constants, np.minimum(loaded, choice_int("machine.train_bytes")))
            time = time + np.maximum(link_us(gpu, constants, _moved_bytes(step, n, size)), (rounds - 1) * round_us)
            if step in STORES and following != "sync":
                time = time + 2 * flight
        if step in ("flags", "sync"):
            acknowledged = time + flight
    return np.maximum(time, acknowledged)
