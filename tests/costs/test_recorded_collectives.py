"""Collectives that another simulator ran on one switch: their bound, and an all-to-all Program beside them.

Its links carry payload alone and nothing else costs time, so what is compared is how well a link is filled.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, replace

import numpy as np
import pytest

from dysharp.engine.burst.run import run_burst
from dysharp.measured.data import read_table
from dysharp.specs import Model, load_cluster
from dysharp.systems import get_system
from dysharp.workload import routing_from

GIB, MIB = 1 << 30, 1 << 20
AWARE = "congestion_aware"
WIRE_PER_PAYLOAD = (128 + 16 + 16) / 128
"""A packet has 128 B of payload and a header flit; an acknowledgement of one flit comes back."""
BUFFER_FLITS = 4096
"""Of a virtual channel: enough for the recorded links, which are four times as long as those of the cluster."""


@dataclass(frozen=True)
class Recorded:
    """One recorded collective: link in bytes per ns, times in ns."""

    backend: str
    kind: str
    algorithm: str
    n: int
    size: int
    link: float
    hop_ns: float
    time_ns: float

    @property
    def payload_ns(self) -> float:
        """The least bytes of one link, at its rate; an all-reduce gathers what it reduced."""
        return (2 if self.kind == "all_reduce" else 1) * self.size * (self.n - 1) / self.n / self.link


def recorded() -> list[Recorded]:
    """All runs of the packaged table."""
    rows = csv.DictReader(io.StringIO(read_table("collectives")))
    return [
        Recorded(
            r["backend"], r["collective"], r["algorithm"], int(r["npus"]), int(r["size_bytes"]),
            float(r["link_bandwidth_GBps"]) * GIB / 1e9, float(r["link_latency_ns"]), float(r["time_ns"]),
        )
        for r in rows
    ]  # fmt: skip


def direct_all_to_alls() -> list[Recorded]:
    return [run for run in recorded() if (run.backend, run.kind, run.algorithm) == (AWARE, "all_to_all", "direct")]


def test_no_run_with_congestion_beats_the_link() -> None:
    """Runs without congestion do, which is why nothing is compared with them."""
    aware, unaware = ([r.time_ns / r.payload_ns for r in recorded() if (r.backend == AWARE) is with_it] for with_it in (True, False))
    assert min(aware) > 1 > min(unaware)


def test_every_direct_all_to_all_is_as_far_above_the_bound_as_the_page_says() -> None:
    runs = direct_all_to_alls()
    assert {(run.n, run.size) for run in runs} == {(n, s * MIB) for n in (8, 32) for s in (1, 16, 64, 256)}
    for run in runs:
        above = run.time_ns / (run.payload_ns + 2 * run.hop_ns) - 1
        assert 0 < above < (0.4 if run.size == MIB else 0.04 if run.n == 8 else 0.01)


@pytest.mark.parametrize("n", [8, 32])
def test_an_all_to_all_program_fills_the_link_as_well(n: int) -> None:
    """16 MiB of every GPU, an equal share to each: ours takes 2 % more than its wire bytes, the recorded run 1 to 4 % more than its payload."""
    (run,) = (run for run in direct_all_to_alls() if (run.n, run.size) == (n, 16 * MIB))
    hidden = 8192
    tokens = run.size // (2 * hidden)
    cluster = load_cluster("paper-gh200-nvl32").with_gpus(n)
    cluster = replace(cluster, link_bytes_per_us=round(1e3 * run.link), link_latency_ps=round(1e3 * run.hop_ns), vc_flits=BUFFER_FLITS)
    expert = np.tile(np.arange(tokens, dtype=np.int32) % n, n).reshape(-1, 1)
    model = Model("even", hidden, 128, n, 1, tokens, 2, 2, "bf16")
    system = get_system("megatron-a2a")
    program = system.plan(model, cluster, routing_from(expert, n, n), "fwd", system.options(form="paper", compute=False))
    trace, _ = run_burst(program)
    ours_ns = trace.time_ps / 2e3  # Dispatch, then Combine: two all-to-alls
    assert 0 <= ours_ns / (WIRE_PER_PAYLOAD * run.payload_ns + 2 * run.hop_ns) - 1 < 0.04
