"""Measure a GPU node for `dysharp calibrate`: GEMMs, attention, norms, copies, launches, and collectives between the GPUs of one node.

    python examples/measure_gpu.py -o mine.csv                       # one GPU
    torchrun --nproc-per-node 8 examples/measure_gpu.py -o mine.csv  # all eight: collectives too
    dysharp validate --data mine.csv --groups                        # attention and norms against the forms
    dysharp calibrate mine.csv --base hw-dgx-h100 -o mine.toml
    dysharp advise deepseek-v3 --cluster mine.toml

Needs PyTorch 2.8 or later and nothing else. Without a CUDA device it says so and ends with exit code 0. Takes about two minutes.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COLUMNS = ("id", "kind", "system", "hardware", "config_json", "metric", "value", "unit", "source")
GEMMS = ((128, 4096, 7168), (512, 4096, 7168), (2048, 4096, 7168), (8192, 4096, 7168), (8192, 7168, 2048), (4096, 8192, 8192), (8192, 2112, 7168))
GROUPED = ((64, 32), (256, 32), (1024, 32), (256, 8), (4096, 8))  # rows per expert, experts
EXPERT = ((4096, 7168), (7168, 2048))  # columns and depth of the two GEMMs of a DeepSeek-V3 expert
PREFILL = ((1, 4096, 32, 8), (4, 4096, 32, 8), (1, 16384, 16, 2), (16, 512, 32, 32))  # requests, tokens of each, heads, key-value heads
DECODE = ((1, 4096, 32, 8), (32, 4096, 32, 8), (128, 2048, 16, 2))  # requests, cached tokens, heads, key-value heads
HEAD = 128  # width of a head
NORM_ROWS, NORM_WIDTHS = 4096, (2048, 4096, 8192, 16384)
COPY_BYTES = 1 << 30
COLLECTIVE_BYTES = tuple(1 << shift for shift in range(21, 29))
WARM, REPEATS, GRAPH = 5, 20, 10
LAUNCHES = 1000


@dataclass(frozen=True)
class Measured:
    """One number: `config` says what was measured, `value` is in `unit`."""

    kind: str
    system: str
    config: dict[str, Any]
    metric: str
    value: float
    unit: str


def write_csv(path: Path, rows: Sequence[Measured], hardware: str, source: str) -> None:
    """Rows in the columns that `dysharp calibrate` and `dysharp validate` read; nothing is left half-written."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w", newline="", encoding="utf-8") as stream:
        out = csv.writer(stream)
        out.writerow(COLUMNS)
        for number, row in enumerate(rows, start=1):
            config = json.dumps(row.config, sort_keys=True)
            out.writerow((f"mine-{number:04}", row.kind, row.system, hardware, config, row.metric, f"{row.value:.6g}", row.unit, source))
    os.replace(temporary, path)


def time_us(torch: Any, call: Callable[[], object], *, graph: bool = True) -> float:
    """Median time of one call on the device, from a CUDA graph of `GRAPH` calls (so that the host is not measured) or call by call."""
    for _ in range(WARM):
        call()
    torch.cuda.synchronize()
    each, run = 1, call
    if graph:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            for _ in range(GRAPH):
                call()
        each, run = GRAPH, captured.replay
        run()
    times = []
    for _ in range(REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / each)
    return statistics.median(times)


def gemms(torch: Any) -> Iterator[Measured]:
    """BF16 and, where the GPU has it, FP8 with one scale per tensor."""
    fp8 = torch.cuda.get_device_capability() >= (8, 9)
    for m, n, k in GEMMS:
        a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
        us = time_us(torch, lambda a=a, b=b: a @ b.t())
        yield Measured("gemm_dense", "torch matmul", {"dtype": "bfloat16", "m": m, "n": n, "k": k, "timing": "cuda graph"}, "latency", us, "us")
        if fp8:
            one = torch.ones((), device="cuda")
            a8, b8 = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
            us = time_us(torch, lambda a=a8, b=b8, s=one: torch._scaled_mm(a, b.t(), scale_a=s, scale_b=s, out_dtype=torch.bfloat16))
            config = {"dtype": "fp8 per tensor", "m": m, "n": n, "k": k, "timing": "cuda graph"}
            yield Measured("gemm_dense", "torch scaled_mm", config, "latency", us, "us")


def grouped_gemms(torch: Any) -> Iterator[Measured]:
    """The GEMMs of experts, BF16, where PyTorch has a grouped GEMM for this GPU."""
    for rows, groups in GROUPED:
        for n, k in EXPERT:
            a = torch.randn(rows * groups, k, device="cuda", dtype=torch.bfloat16)
            b = torch.randn(groups, n, k, device="cuda", dtype=torch.bfloat16).transpose(-2, -1)
            ends = torch.arange(rows, rows * groups + 1, rows, device="cuda", dtype=torch.int32)
            try:
                us = time_us(torch, lambda a=a, b=b, e=ends: torch._grouped_mm(a, b, offs=e))
            except (AttributeError, RuntimeError) as error:
                print(f"no grouped GEMM: {str(error).splitlines()[0]}", file=sys.stderr)
                return
            config = {"dtype": "bf16", "m_per_group": rows, "groups": groups, "n": n, "k": k}
            yield Measured("grouped_gemm_contiguous", "torch grouped_mm", config, "latency", us, "us")


def attention(torch: Any) -> Iterator[Measured]:
    """Flash attention of PyTorch, BF16: causal prefill, forward and backward, and one token against a cache.

    The backward kernel is timed with its launch: autograd is not captured in a graph.
    """
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def heads(batch: int, tokens: int, number: int, grad: bool = False) -> Any:
        return torch.randn(batch, number, tokens, HEAD, device="cuda", dtype=torch.bfloat16, requires_grad=grad)

    for batch, tokens, many, few in PREFILL:
        config = {"batch": batch, "q_len": tokens, "past_len": 0, "heads": many, "kv_heads": few, "dtype": "bfloat16", "kernel": "torch sdpa"}
        q, k, v = heads(batch, tokens, many), heads(batch, tokens, few), heads(batch, tokens, few)
        us = time_us(torch, lambda q=q, k=k, v=v: sdpa(q, k, v, is_causal=True, enable_gqa=True))
        yield Measured("attention_context", "torch sdpa", config | {"head_dim": HEAD, "kv_dtype": "bfloat16"}, "latency", us, "us")
        q, k, v = heads(batch, tokens, many, True), heads(batch, tokens, many, True), heads(batch, tokens, many, True)
        out = sdpa(q, k, v, is_causal=True)
        gradient = torch.randn_like(out)
        us = time_us(torch, lambda o=out, i=(q, k, v), g=gradient: torch.autograd.grad(o, i, g, retain_graph=True), graph=False)
        shape = {"kv_heads": many, "qk_dim": HEAD, "v_dim": HEAD, "timing": "eager"}
        yield Measured("attention_train_bwd", "torch sdpa", config | shape, "latency", us, "us")
    for batch, cached, many, few in DECODE:
        config = {"batch": batch, "q_len": 1, "past_len": cached - 1, "heads": many, "kv_heads": few, "dtype": "bfloat16", "kernel": "torch sdpa"}
        q, k, v = heads(batch, 1, many), heads(batch, cached, few), heads(batch, cached, few)
        us = time_us(torch, lambda q=q, k=k, v=v: sdpa(q, k, v, enable_gqa=True))
        yield Measured("attention_generation", "torch sdpa", config | {"head_dim": HEAD, "kv_dtype": "bfloat16"}, "latency", us, "us")


def norms(torch: Any) -> Iterator[Measured]:
    """RMSNorm of PyTorch, BF16, forward."""
    for width in NORM_WIDTHS:
        rows = torch.randn(NORM_ROWS, width, device="cuda", dtype=torch.bfloat16)
        weight = torch.ones(width, device="cuda", dtype=torch.bfloat16)
        us = time_us(torch, lambda x=rows, w=weight, n=width: torch.nn.functional.rms_norm(x, (n,), w))
        config = {"B": 1, "S": NORM_ROWS, "H": width, "dtype": "bf16", "pass": "forward", "provider": "torch", "timing": "cuda graph"}
        yield Measured("rmsnorm", "torch rms_norm", config, "latency", us, "us")


def memory(torch: Any) -> Iterator[Measured]:
    """Reads plus writes of a large copy."""
    source = torch.empty(COPY_BYTES, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    us = time_us(torch, lambda: target.copy_(source), graph=False)
    yield Measured("hbm_bandwidth", "torch copy", {"bytes": COPY_BYTES}, "bandwidth", 2 * COPY_BYTES / us / 1e3, "GB/s")


def launches(torch: Any) -> Iterator[Measured]:
    """An empty-handed kernel: back to back in a graph, and launched one by one by the host."""
    small = torch.zeros(1, device="cuda")
    yield Measured("kernel_launch", "torch add", {"timing": "cuda graph"}, "latency", time_us(torch, lambda: small.add_(1)), "us")
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(LAUNCHES):
        small.add_(1)
    end.record()
    end.synchronize()
    yield Measured("kernel_launch", "torch add", {"timing": "eager"}, "latency", 1e3 * begin.elapsed_time(end) / LAUNCHES, "us")


def collectives(torch: Any, dist: Any, gpus: int) -> Iterator[Measured]:
    """NCCL between all GPUs of the node; every rank takes part, the slowest counts. Sizes as in nccl-tests."""
    for size in COLLECTIVE_BYTES:
        n = size // 2
        whole = torch.zeros(n, device="cuda", dtype=torch.bfloat16)
        other = torch.zeros(n, device="cuda", dtype=torch.bfloat16)
        part = torch.zeros(n // gpus, device="cuda", dtype=torch.bfloat16)
        calls = {
            "nccl_alltoall": lambda a=whole, b=other: dist.all_to_all_single(b, a),
            "nccl_all_gather": lambda a=whole, b=part: dist.all_gather_into_tensor(a, b),
            "nccl_reduce_scatter": lambda a=whole, b=part: dist.reduce_scatter_tensor(b, a),
        }
        for kind, call in calls.items():
            slowest = torch.tensor([time_us(torch, call, graph=False)], device="cuda")
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            yield Measured(kind, "NCCL", {"bytes": size, "gpus": gpus, "dtype": "bf16"}, "latency", float(slowest), "us")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write; 0 also where there is nothing to measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, default=Path("measured.csv"), help="CSV to write (measured.csv)")
    out = parser.parse_args(arguments).out
    try:
        import torch
    except ImportError:
        print("measure_gpu: PyTorch is not installed, nothing measured")
        return 0
    if not torch.cuda.is_available():
        print("measure_gpu: found no CUDA device, nothing measured")
        return 0
    rank, gpus = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.cuda.set_device(rank)
    rows = []
    if rank == 0:
        for measure in (gemms, grouped_gemms, attention, norms, memory, launches):
            print(f"measuring: {measure.__name__}", file=sys.stderr)
            rows += list(measure(torch))
    if gpus > 1:
        import torch.distributed as dist

        dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
        rows += list(collectives(torch, dist, gpus))
        dist.destroy_process_group()
    if rank == 0:
        name = torch.cuda.get_device_name()
        write_csv(out, rows, f"{gpus}x {name}", f"examples/measure_gpu.py, torch {torch.__version__}, CUDA {torch.version.cuda}")
        print(f"written: {out}, {len(rows)} rows of {gpus} x {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
