"""Libraries of today, from their public code: TokenWeave weaves two halves of the tokens, Flux fuses stores and copies with its GEMMs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dysharp.arrays import I32
from dysharp.program import Program, Tail
from dysharp.specs import Cluster
from dysharp.systems.building.tp.schema import GATHERED, ROWS
from dysharp.systems.building.tp.sublayer import Machine
from dysharp.systems.building.tp.ways import Ways
from dysharp.systems.collectives.nvls_two_shot import BLOCK_BYTES
from dysharp.systems.collectives.register import collective
from dysharp.systems.tp.nvls import norm_own
from dysharp.systems.tp.overlap import Fused
from dysharp.units import PS_PER_US
from dysharp.workload.sublayer import SUB_LAYER, SubLayer

TOKENWEAVE = "https://github.com/microsoft/tokenweave"
FLUX = "https://github.com/bytedance/flux"
CTAS = {1024: 4, 2048: 4, 4096: 4, 8192: 8, 16384: 8, 32768: 8}
"""Thread blocks of the fused kernel behind attention by tokens of a batch, on eight H100 (5658c21, prefill_configs/llama_config_8.json)."""


@dataclass(frozen=True, slots=True)
class Weave:
    """`ctas`: thread blocks of the fused kernel, each on an SM of its own; 0: those of the public configuration. Others: as of `tp-nvls`."""

    ctas: int = 0
    seed: int = 0
    chunk_bytes: int = 16384

    def of(self, tokens: int) -> int:
        """Thread blocks for a batch of `tokens`."""
        return self.ctas or next((n for most, n in CTAS.items() if tokens <= most), CTAS[32768])


def _ended(build: Ways, name: str, ops: I32) -> I32:
    """`[gpus]` JOINs behind all of `ops[gpu, ...]`."""
    return build.all_of(name, ops.reshape(build.n, -1))


@collective("tokenweave", source=TOKENWEAVE, options=Weave, operations=(SUB_LAYER,), switch="it multicasts and adds there")
def tokenweave(work: SubLayer, cluster: Cluster, options: Weave) -> Program:
    """TokenWeave: pull of sums, norm of own rows and multicast in one kernel on few SMs, for one half of the tokens beside GEMMs of the other."""
    ctas = options.of(work.tokens)
    build = Ways(work, cluster, Machine(seed=options.seed, chunk_bytes=options.chunk_bytes, comm_sms=ctas))
    turns = build.cuts.blocks // build.n
    cut = (turns + 1) // 2 * build.n
    halves = [half for half in (build.blocks[:cut], build.blocks[cut:]) if len(half)]
    done = build.gemm1(build.launch("gemm1"))
    first = [_ended(build, "tiles", done[:, half]) for half in halves]
    build.wait(done[:, halves[-1]], first[0][:, None, None]) if len(halves) > 1 else None  # one stream: the second half's GEMM is behind the first's
    begun = np.zeros(build.cuts.blocks, np.int32)
    starts = [_ended(build, "fused.ready", ended[:, None]) for ended in first]
    for number, half in enumerate(halves):
        begun[half] = build.barrier(f"fused{number}", starts[number])[build.home[half]]
    sums = build.reduce_pulled(begun[build.block_of(build.every_chunk)], Tail.OP_DONE, ctas * BLOCK_BYTES)
    rows = build.norm(build.home, build.blocks, "fused")
    build.wait(rows[build.block_of(build.every_chunk)], sums)
    tiles = build.multicast(ROWS, GATHERED, rows[build.block_of(build.every_chunk)])
    second, before = build.gemm2(), None
    for number, half in enumerate(halves):
        here = build.joins("gathered", build.gpus)
        build.wait(here[:, None], tiles[:, half], Tail.TILE_READY)
        end = build.barrier(f"fused{number}.end", here)
        build.wait(second[:, half], end[:, None])
        build.wait(second[:, half], (first[-1] if before is None else _ended(build, "half", before))[:, None])
        if number + 1 < len(halves):
            build.wait(starts[number + 1], end)
        before = second[:, half]
    return build.build()


@collective("flux", source=FLUX, options=Fused, operations=(SUB_LAYER,))
def flux(work: SubLayer, cluster: Cluster, options: Fused) -> Program:
    """Flux on NVLink: the first GEMM stores tiles to their owners, a kernel adds them; the second GEMM waits for copies tile by tile."""
    build = Ways(work, cluster, Machine(seed=options.seed, chunk_bytes=options.chunk_bytes, rotated=True))
    stored = build.reduce_stores(build.gemm1(build.launch("gemm1")))
    met = build.joins("stored", build.gpus)
    build.wait(met[build.home], stored, Tail.TILE_READY)
    moved = (build.n + 1) * work.size / build.n
    added = build.delays("local sum", np.full(build.n, round(moved / cluster.hbm_bytes_per_us * PS_PER_US)), build.gpus)
    build.wait(added, build.barrier("stores.end", met))
    _, normed = norm_own(build, added)
    begun = build.launch("gemm2", normed)
    second = build.gemm2()
    build.wait(second, begun[:, None])
    copied = np.repeat(normed[:, None], build.cuts.blocks, axis=1)
    build.gather_loaded(copied, Tail.OP_DONE, second, merged=False, window=work.size, ahead=build.cuts.blocks)
    return build.build()
