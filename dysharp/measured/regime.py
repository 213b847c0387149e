"""How a measured program ran: its regime.

Two regimes of one kernel differ by tens of microseconds. A constant that is fitted to both hides the difference, so
tables show each regime.

| regime | the GPU at the start | what a time contains |
|---|---|---|
| CUDA graph | replays of one graph | all kernels of the graph and their gaps |
| kernel times | busy | kernels alone, by a profiler; no gaps |
| chained calls | busy with the call before | calls of a loop without a wait of the host |
| cached handle | busy with the call before | as chained calls; counts are known, so the host does not wait for them |
| drained GPU | idle: the host has waited for it, and all GPUs for each other | one call with its first launches |
| torch call | not stated | a call of a library with the host's part |
| not stated | not stated | not stated |
"""

from dysharp.measured.measurements import Measurement

GRAPH, KERNEL, CHAINED = "CUDA graph", "kernel times", "chained calls"
CACHED, DRAINED, TORCH, UNKNOWN = "cached handle", "drained GPU", "torch call", "not stated"
PROTOCOLS = {"P1": CACHED, "P2": KERNEL, "P5": CHAINED, "P6": GRAPH, "P7": DRAINED}
"""Protocol of a collection of measurements (`config_json`, key `proto`) -> regime.

The program of P7 waits for the GPU before each call. Source: ai-dynamo/aiconfigurator, collector/sglang/collect_wideep_deepep_moe.py.
"""
NAMED = {"drained": DRAINED, "fresh": DRAINED, "chained": CHAINED, "graph": GRAPH}
"""Key `regime` of a row -> regime."""
DRAINED_SOURCES = ("mhoqueanik/moe_ep_benchmark",)
"""Benchmarks with a barrier and a wait before each call.

Source: mhoqueanik/moe_ep_benchmark, bench_moe_ep_nonmega.py and bench_moe_ep_mega.py.
"""
PROFILED = ("DeepGEMM", "DeepGEMM MegaMoE")
"""Systems whose library times kernels by a profiler. Source: deepseek-ai/DeepGEMM, tests (bench_kineto)."""


def regime_of(m: Measurement) -> str:
    """The regime of a measurement, from its protocol, its keys `timing` and `measure`, its system and its source."""
    timing, measure = str(m.config.get("timing", "")).lower(), str(m.config.get("measure", "")).lower()
    stated = (
        (NAMED.get(str(m.config.get("regime", "")), ""), True),
        (DRAINED, timing.startswith("cx1")),
        (PROTOCOLS.get(str(m.config.get("proto", "")), ""), True),
        (GRAPH, "cuda graph" in timing or "CUDA graph" in m.system),
        (CHAINED, timing.startswith("eager")),
        (KERNEL, "kernel" in measure),
        (TORCH, "torch" in measure),
        (DRAINED, any(name in m.source for name in DRAINED_SOURCES)),
        (KERNEL, m.system in PROFILED),
    )
    return next((regime for regime, holds in stated if regime and holds), UNKNOWN)
