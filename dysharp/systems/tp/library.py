"""Libraries of today: TokenWeave weaves two parts of the tokens, Flux fuses stores and copies with its GEMMs. Forms: paper and code."""

import numpy as np

from dysharp.base import PS_PER_US
from dysharp.costs import gemm_gang
from dysharp.program import I32, Tail, frozen
from dysharp.systems.building.tp import GATHERED, ROWS, SUMS, Ways, sub_layer
from dysharp.systems.collectives.multimem import BLOCK_BYTES
from dysharp.systems.registry import is_real
from dysharp.systems.tp.nvls import norm_own
from dysharp.workload import SubLayer

TOKENWEAVE = "https://github.com/microsoft/tokenweave"
FLUX = "https://github.com/bytedance/flux"
CTAS = {1024: 4, 2048: 4, 4096: 4, 8192: 8, 16384: 8, 32768: 8}
"""Thread blocks of the fused kernel behind attention by tokens of a batch, on eight H100 (5658c21, prefill_configs/llama_config_8.json)."""
OFFSET = {8192: 256, 16384: 256}
"""Tokens of the first half beyond half of a batch (the same file, chunk_offset)."""


@frozen
class _Form:
    """`form`: "paper", "real" or "auto" (real on hw-* clusters). Others: as of `tp-nvls`."""

    form: str = "auto"
    seed: int = 0
    chunk_bytes: int = 16384


@frozen
class _Weave:
    """`ctas`: thread blocks of the fused kernel, each on an SM of its own; 0: as many as in the public configuration. Others: as of `flux`."""

    form: str = "auto"
    ctas: int = 0
    seed: int = 0
    chunk_bytes: int = 16384


def _ctas(work: SubLayer, options: _Weave) -> int:
    """Thread blocks of the fused kernel."""
    return options.ctas or next((n for most, n in CTAS.items() if work.tokens <= most), CTAS[32768])


def _ended(build: Ways, name: str, ops: I32) -> I32:
    """`[gpus]` JOINs behind all of `ops[gpu, ...]`."""
    return build.all_of(name, ops.reshape(build.n, -1))


def _first_part(build: Ways, real: bool) -> int:
    """Blocks of the first part, as many of each home. The code takes half of the tokens and an offset; the paper the part nearest to half with
    which both GEMMs need no wave of thread blocks more than undivided."""
    turns = build.cuts.blocks // build.n
    each = build.n * build.cuts.rows
    if real:
        return min(turns, -(-(build.work.tokens // 2 + OFFSET.get(build.work.tokens, 0)) // each)) * build.n

    def waves(blocks: int) -> int:
        return -(-blocks * build.cuts.tiles // build.slots) - (-blocks * gemm_gang(build.work.outer) // build.slots)

    def cost(part: int) -> tuple[int, int]:
        return waves(part * build.n) + waves((turns - part) * build.n), abs(2 * part - turns)

    return min(range((turns + 1) // 2, max(2, turns)), key=cost) * build.n


@sub_layer("tokenweave", TOKENWEAVE, _Weave, switch=SUMS, comm_sms=_ctas)
def _tokenweave(build: Ways, options: _Weave) -> None:
    """TokenWeave: pull of sums, norm of own rows and multicast in one kernel on few SMs, for one part of the tokens beside GEMMs of the other."""
    ctas, real = _ctas(build.work, options), is_real(options.form, build.cluster)
    cut = _first_part(build, real)
    parts = [part for part in (build.blocks[:cut], build.blocks[cut:]) if len(part)]

    def kernel(name: str, after: I32) -> I32:
        return build.launch(name, after) if real else after

    done = build.gemm1(build.launch("gemm1"))
    first = [_ended(build, "tiles", done[:, part]) for part in parts]
    if len(parts) > 1:  # one stream: the second part's GEMM is behind the first's
        build.wait(done[:, parts[-1]], kernel("gemm1b", first[0])[:, None, None])
    begun = np.zeros(build.cuts.blocks, np.int32)
    starts = [_ended(build, "fused.ready", ended[:, None]) for ended in first]
    for number, part in enumerate(parts):
        begun[part] = build.barrier(f"fused{number}", kernel(f"fused{number}", starts[number]))[build.home[part]]
    block = build.block_of(build.every_chunk)
    sums = build.reduce_pulled(begun[block], Tail.OP_DONE, ctas * BLOCK_BYTES)
    rows = build.norm(build.home, build.blocks, "fused")
    build.wait(rows[block], sums)
    tiles = build.multicast(ROWS, GATHERED, rows[block])
    second, before = build.gemm2(), first[-1]
    for number, part in enumerate(parts):
        here = build.join("gathered")
        build.wait(here[:, None], tiles[:, part], Tail.TILE_READY)
        end = build.barrier(f"fused{number}.end", here)
        both = build.all_of("second", np.stack([end, before], axis=1))
        build.wait(second[:, part], kernel(f"gemm2.{number}", both)[:, None])
        if number + 1 < len(parts):
            build.wait(starts[number + 1], end)
        before = _ended(build, "part", second[:, part])


@sub_layer("flux", FLUX, _Form, rotated=True)
def _flux(build: Ways, options: _Form) -> None:
    """Flux on NVLink: the first GEMM stores tiles to their owners (paper: memory adds them; code: a kernel does); the second waits for copies."""
    stored = build.reduce_stores(build.gemm1(build.launch("gemm1")))
    added = build.barrier("stores.end", build.join_of("stored", build.home, stored, Tail.TILE_READY))
    if is_real(options.form, build.cluster):
        moved = (build.n + 1) * build.work.size / build.n
        summed = build.waits("local sum", np.full(build.n, round(moved / build.cluster.hbm_bytes_per_us * PS_PER_US)), build.gpus)
        build.wait(summed, build.launch("local sum", added))
        added = summed
    normed = norm_own(build, added)
    begun = build.launch("gemm2", normed)
    build.wait(second := build.gemm2(), begun[:, None])
    copied = np.repeat(normed[:, None], build.cuts.blocks, axis=1)
    hardware = build.b.hardware
    window = (4 * hardware.lat + hardware.responder) * hardware.rate // PS_PER_US  # one copy behind the other fills the link
    build.gather_loaded(copied, Tail.OP_DONE, second, merged=False, window=window, ahead=build.cuts.blocks)
