"""A made run of a few MoE layers on ranks of an H100 domain, as torch.profiler writes it, with causes of slowness to plant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dysharp.api.profile_costs import _ByShape, machine_for
from dysharp.profiles.reader import Call
from dysharp.specs.catalog import load_cluster

HIDDEN, LAYERS, TOKENS = 4096, 4, 4096
KERNELS = {
    "aten::mm": "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT", "notify": "void deep_ep::intranode::notify_dispatch<8>(int const*)",
    "dispatch": "void deep_ep::intranode::dispatch<8, 512>(int4*)", "combine": "void deep_ep::intranode::combine<8, 512>(int4*)",
    "experts": "void deep_gemm::sm90_m_grouped_gemm<128>(int)", "attention": "void flash::flash_fwd_kernel<128>(Flash_fwd_params)",
    "nccl": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "copy": "Memcpy DtoD (Device -> Device)",
}  # fmt: skip
BETWEEN, LAUNCH = 1.0, 5.0
"""Microseconds from one kernel to the next, and from a launch to its kernel."""


class Rank:
    """Events of one rank."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks, self.now, self.events, self.number = rank, ranks, 1e6, list[dict[str, Any]](), 0

    def run(self, kernel: str, us: float, *, late: float = 0.0, until: float = 0.0, shapes: tuple[tuple[int, ...], ...] = ()) -> None:
        """A kernel of `us`, or one that ends at `until`. `late`: its launch comes so many microseconds after the kernel before it."""
        self.number, start = self.number + 1, self.now + BETWEEN + late
        us = until - start if until else us
        ids = {"External id": self.number, "correlation": self.number}
        if shapes:
            dims = {"Input Dims": [list(one) for one in shapes], "Input type": ["c10::BFloat16"] * len(shapes)}
            self.add("cpu_op", kernel, start - 50, 1, ids | dims)
        self.add("cuda_runtime", "cudaLaunchKernel", start - (0 if late else 40) - LAUNCH, LAUNCH, ids)
        self.add("gpu_memcpy" if kernel == "copy" else "kernel", KERNELS[kernel], start, us, ids | {"stream": 7})
        self.now = start + us

    def add(self, kind: str, name: str, ts: float, us: float, args: dict[str, Any]) -> None:
        """An event."""
        self.events.append({"ph": "X", "cat": kind, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": us, "args": args})

    @property
    def trace(self) -> dict[str, Any]:
        """The file."""
        device = [{"name": "NVIDIA H100 80GB HBM3", "numSms": 132}]
        run = {"backend": "nccl", "rank": self.rank, "world_size": self.ranks}
        return {"schemaVersion": 1, "deviceProperties": device, "distributedInfo": run, "traceEvents": self.events}


def run_of(ranks: int = 4, tokens: int = TOKENS, planted: str = "") -> list[dict[str, Any]]:
    """Files of all ranks. `planted`: sleep, copy, nccl or unbalanced; a small batch is few `tokens`."""
    shape, every = ((tokens, HIDDEN), (HIDDEN, HIDDEN)), [Rank(rank, ranks) for rank in range(ranks)]
    gemm = _ByShape(machine_for(load_cluster("hw-dgx-h100"), True)).of("GEMM", Call("aten::mm", shape, ("c10::BFloat16",) * 2))
    assert gemm
    for layer in range(LAYERS):
        for one in every:
            for _ in range(4):
                one.run("aten::mm", gemm.us, shapes=shape)
            one.run("attention", 30, late=900.0 if planted == "sleep" and one.rank == 2 else 0.0)
            if planted == "copy" and layer == 2:
                one.run("copy", 1500)
        if planted == "nccl":
            for one in every:
                one.run("nccl", 400)
        else:
            together(every, "notify", 3)
            for one in every:
                one.run("dispatch", 40)
        for one in every:
            one.run("experts", 150 * (2.5 if planted == "unbalanced" and one.rank == 1 else 1))
        if planted == "nccl":
            for one in every:
                one.run("nccl", 400)
        else:
            together(every, "combine", 50)
    return [one.trace for one in every]


def together(every: list[Rank], kernel: str, us: float) -> None:
    """A kernel that ends on all ranks `us` after the last one begins it."""
    end = max(one.now for one in every) + BETWEEN + us
    for one in every:
        one.run(kernel, 0, until=end)


def write(folder: Path, traces: list[dict[str, Any]]) -> list[str]:
    """Files of a run."""
    files = [folder / f"rank{n}.json" for n in range(len(traces))]
    for file, trace in zip(files, traces, strict=True):
        file.write_text(json.dumps(trace))
    return list(map(str, files))
