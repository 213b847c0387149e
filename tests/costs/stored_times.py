"""Regression values of the closed forms on GPUs of every architecture, over kinds, and sizes on both sides of every limit.

The constants are not the fitted ones: each has a number of its own, so that a new fit changes nothing here and no constant hides another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from dysharp.costs import allreduce, attention, collectives, gemm, gemm_tiles, linear_attention, moe, operators, transfer
from dysharp.specs import load_cluster
from dysharp.specs.fitted import fitted
from dysharp.specs.gpu import Gpu, load_gpu
from dysharp.workload import expected_copies
from tests.stored_values import Cases, Table, parts_of

STORED = Table(__file__)
GPUS = ("a100-sxm", "h100-sxm", "b200", "b300", "mi300x")
Columns = dict[str, Any]


def own_constants() -> dict[str, float]:
    """Every fitted constant with a number that its name gives, in the lower half of its range."""
    part = {name: hashlib.blake2b(name.encode(), digest_size=4).digest()[0] / 512 for name in fitted()}
    return {name: round(entry.low + part[name] * (entry.high - entry.low), 9) for name, entry in fitted().items()}


C = own_constants()
KEPT = C["attention.steady_part"]
M = np.array([1.0, 16.0, 17.0, 64.0, 65.0, 128.0, 129.0, 256.0, 257.0, 1000.0, 4096.0, 16384.0])


def operator_times(gpu: Gpu) -> Columns:
    """`operators`."""
    out: Columns = {
        f"gemm {library} {dtype}": operators.gemm_us(gpu, C, M, 1536.0, k, dtype, library=library, groups=groups, kept=kept)
        for library, dtype, k, groups, kept in (
            ("cublas", "bf16", 4096.0, 1.0, 1.0), ("cublas", "fp8", 7168.0, 3.0, KEPT), ("cutlass", "fp8", 2048.0, 1.0, 1.0),
            ("deepgemm", "fp8", 3072.0, 1.0, 1.0), ("deepgemm", "bf16", 3072.0, 2.0, KEPT),
        )
    }  # fmt: skip
    for masked in (False, True):
        out[f"grouped {masked}"] = operators.grouped_gemm_us(gpu, C, M[::2], 5.0, 1000.0, 2000.0, "fp8", masked=masked)
    sustained = [operators.sustained_flops_per_us(gpu, C, dtype) for dtype in ("bf16", "fp8")]
    high = [operators.sustained_flops_per_us(gpu, C | {f"{operators.arch_of(gpu)}.{d}_sustained": 9.0}, d) for d in ("bf16", "fp8")]
    kernels = [operators.launch_us(gpu, C), operators.light_us(gpu, C), operators.memory_kernel_us(gpu, C, 3e7), operators.hbm_us(gpu, C, 7e7)]
    cast = operators.quantise_us(gpu, C, [1e3, 1e6, 3e7])
    slow_cast = operators.quantise_us(gpu, C | {"sm.quantise_values": 0.01}, [1e3, 1e6, 3e7])
    overlap = operators.overlap([3.0, 5.0, 0.0], [4.0, 1.0, 0.0], 2.0)
    return out | {"rates": [*sustained, *high], "kernels": kernels, "cast": cast, "slow cast": slow_cast, "overlap": overlap}


def attention_times(gpu: Gpu) -> Columns:
    """`attention`: every field of a call away from its default once."""
    queries, past = np.array([1.0, 2.0, 64.0, 100.0, 128.0, 129.0, 1000.0, 4096.0]), np.array([0.0, 1.0, 300.0, 2048.0, 127.0, 50.0, 0.0, 9000.0])
    plain = attention.AttentionCall(batch=3, queries=queries, past=past, heads=24, kv_heads=6, qk_dim=192, v_dim=128)
    calls = {
        "plain": plain, "window": replace(plain, window=200), "narrow": replace(plain, window=1), "all": replace(plain, causal=False),
        "fp8": replace(plain, dtype="fp8", kv_dtype="fp8"), "latent": replace(plain, latent=True, kv_heads=1, qk_dim=576, v_dim=512),
        "packed": replace(plain, packed=True, rows=192, columns=112), "lanes": replace(plain, lanes=True), "masked": replace(plain, masked=True),
        "many": replace(plain, batch=70, heads=48), "few": replace(plain, batch=1, heads=5, kv_heads=5, rows=64, columns=96),
        "long": replace(plain, past=past + 100_000, batch=1), "latent fp8": replace(plain, latent=True, heads=128, kv_heads=1, kv_dtype="fp8"),
    }  # fmt: skip
    out: Columns = {}
    for name, call in calls.items():
        ahead = attention.attention_us(gpu, C, call), attention.attention_us(gpu, C, call, "backward")
        out[name] = [*ahead, attention.decode_us(gpu, C, call), attention.attention_flops(call), attention.pairs(call), attention._key_bytes(call)]
        out[f"{name}, one"] = attention.decode_us(gpu, C, replace(call, queries=1, past=past + 1))
    out["own"] = [attention._own_bytes(plain), attention._own_bytes(calls["fp8"], "backward")]
    out["sharing"] = [attention.sharing(calls["packed"]), attention.sharing(plain)]
    out["passes"] = [attention.passes_us(gpu, C, [1e5, 3e7], 3.0), attention.passes_us(gpu, C, 2e7, 5.0, element=1.0, kernels=4)]
    return out


def attention_tiles() -> Columns:
    """Tiles of attention kernels by width of a head, on both sides of every limit."""
    widths = (32, 64, 65, 96, 97, 128, 129, 192, 193, 256, 512)
    out: Columns = {
        f"flash {dtype} {width}": [
            attention.flash_tile(width, dtype, queries, window=window, causal=causal)
            for queries in (1.0, 64.0, 65.0, 300.0) for window in (False, True) for causal in (False, True)
        ]
        for dtype in ("bf16", "fp8") for width in widths
    }  # fmt: skip
    return out | {f"fmha {dtype}": [attention.fmha_tile(width, dtype) for width in widths] for dtype in ("bf16", "fp8")}


def delta_times(gpu: Gpu) -> Columns:
    """`linear_attention`."""
    calls = [
        linear_attention.DeltaNet(3, tokens, 4, heads, 96, 128) for tokens in (1, 64, 65, 1000) for heads in (6, gpu.n_sms / 3, gpu.n_sms / 3 + 1)
    ]
    forms = (linear_attention.update_us, linear_attention.gradient_us, linear_attention.prefill_us, linear_attention.fused_prefill_us)
    out: Columns = {form.__name__: [form(gpu, C, call) for call in calls] for form in forms}
    out["bytes"] = [calls[0].row_bytes, calls[0].state_bytes]
    sizes, blocks = [1e3, 1e7, 3e8], [0.0, 1e3, 1e6]
    slow = C | {"sm.permute_bytes": 0.01}
    out["convolution"] = [linear_attention.convolution_us(gpu, constants, sizes, b) for constants in (C, slow) for b in (0.0, blocks)]
    return out


def collective_times(gpu: Gpu) -> Columns:
    """`collectives`: every protocol, numbers of GPUs on both sides of every limit."""
    n = np.array([2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 32.0, 33.0, 72.0])[:, None]
    size = np.array([1e3, 3e5, 4e6, 7e7, 2e9])
    out: Columns = {}
    for kind in ("all_gather", "reduce_scatter", "all_reduce", "alltoall"):
        for in_place in (False, True):
            out[f"{kind} {in_place}"] = collectives.collective_us(gpu, C, kind, n, size, in_place=in_place)
    for nvls in (False, True):
        out[f"nvls {nvls}"] = collectives.collective_us(gpu, C, "all_reduce", n[2:6], size, nvls=nvls)
    out["chosen"] = [collectives.ring_protocol(gpu, p, n, np.geomspace(1e3, 1e10, 60), in_switch=s) for p in (1, 2) for s in (False, True)]
    out["in switch"] = collectives.in_switch(gpu, n[:, 0], None)
    block, fill = collectives.nvls_rounds(gpu, C, n, np.array([1e5, 1048576.0, 4e6, 2e7, 3e8]))
    out["turns"] = [block, fill]
    out["limits"] = collectives.nvls_rounds(
        gpu, C, 4.0, [at * collectives.NVLS_CHANNELS[operators.arch_of(gpu)] * 4 for at in (65536, 524288, 8388608)]
    )[0]
    out["loads"] = [collectives.nvls_loads(gpu, g) for g in (5, 6, 7)]
    domains = ((8, 2, 50.0, 3e6), (4, 3, 25.0, 4e8), (8, 4, 50.0, 1e4), (2, 9, 100.0, 5e9))
    out["rails"] = [collectives.rail_rings_us(gpu, C, g, d, nic, b) for g, d, nic, b in domains]
    out["rings"] = [collectives.ring_tuned_us(gpu, g, d, b, nic) for g, d, nic, b in domains]
    out["trees"] = [collectives.tree_protocol(gpu, g, d, b, nic) for g, d, nic, b in (*domains, (7, 1, 50.0, 3e6), (8, 2, 1.0, 1e8))]
    out["start"] = [collectives.start_us(gpu, C, p) for p in collectives.PROTOCOLS] + [collectives.hop_us(gpu, p) for p in collectives.PROTOCOLS]
    trips = [collectives.flight_us(gpu), collectives.round_trip_us(gpu), collectives.link_us(gpu, C, 3e6), collectives.sync_us(gpu, C, 5)]
    return out | {"trips": [*trips, collectives.sync_us(gpu, C), collectives.ring_us(gpu, 1e7)]}


def kernel_times(gpu: Gpu) -> Columns:
    """`allreduce`: all kernels, without a window and with one."""
    n, size = np.array([2.0, 5.0, 8.0])[:, None], np.array([1e3, 3e5, 2e8])
    out: Columns = {name: [allreduce.kernel_allreduce_us(gpu, C, name, n, size, window) for window in (0.0, 1e5)] for name in allreduce.KERNELS}
    steps = dict.fromkeys(step for kernel in allreduce.KERNELS.values() for step in kernel)
    out["moved"] = {step: allreduce._moved_bytes(step, 5, 1000) for step in steps}
    out["apart"] = {name: allreduce.staggered(kernel) for name, kernel in allreduce.KERNELS.items() if "flags" in kernel}
    allreduce.KERNELS["apart"] = allreduce.staggered(allreduce.KERNELS["vllm two-stage"])
    out["apart us"] = allreduce.kernel_allreduce_us(gpu, C, "apart", n, size, 3e4)
    del allreduce.KERNELS["apart"]
    return out


def expert_times(gpu: Gpu) -> Columns:
    """`moe`."""
    slow, wide = C | {"sm.permute_bytes": 0.01}, C | {"hbm.fraction": 1e3, "fused.rate": 0.01}
    out: Columns = {
        "calls": [moe.host_us(gpu, C, 3.0), moe.mlp_calls(gpu), moe.layer_calls(gpu), moe.layer_us(gpu, C, 70.0)],
        "host": moe.host_constant(gpu, C),
        "launches": moe._with_launches_us(gpu, C, [0.1, 4.0, 100.0]),
        "linear": [moe.linear_us(gpu, C, [0.1, 40.0], m, 3000.0) for m in (100.0, 9000.0)],
        "permute": [moe.permute_us(gpu, c, 700.0, [900.0, 9000.0], 3000.0, *width) for c in (C, slow) for width in ((), (2.0,))],
        "mlp": [moe.expert_mlp_us(gpu, C, [30.0, 300.0], 5.0, 3000.0, 700.0, d, *gates) for d in ("bf16", "fp8") for gates in ((), (1.0,))],
        "eager": moe.eager_mlp_us(gpu, C, [3.0, 300.0, 30_000.0], 5.0, 4000.0, 3000.0, 700.0),
    }
    fused = {"hidden": 3000.0, "inter": 700.0, "gpus": 7.0, "dispatch_bytes": 3100.0, "combine_bytes": 6000.0, "weight_bytes": 1.03}
    rows, touched = np.array([128.0, 129.0, 5000.0, 90.0]), np.array([1.0, 1.0, 6.0, 0.0])
    out["fused"] = [
        moe.fused_layer_us(gpu, c, rows=rows, touched=touched, rate_dtype="fp8", cast=cast, **fused) for c in (C, wide) for cast in (0.0, 3e6)
    ]
    return out


def transfer_times(gpu: Gpu) -> Columns:
    """`transfer`."""
    t, r, row, g = np.array([3.0, 60.0, 4000.0]), 2.6, 7000.0, 6.0
    c, slow = C, C | {"sm.copy_GBps": 0.05, "link.fraction": 1e3, "hbm.fraction": 1e3, "trt.token_us": 1e-4, "mori.link_part": 1e3}
    out: Columns = {}
    for name, k in (("", c), (", slow SMs", slow)):
        out[f"deepep{name}"] = [transfer.deepep_dispatch_us(gpu, k, t, r, row, 20.0, g), transfer.deepep_combine_us(gpu, k, t, r, 2 * row, 22.0, g)]
        out[f"low latency{name}"] = [transfer.ll_dispatch_us(gpu, k, t, 4.0, row, e, g) for e in (48.0, 132.0, 288.0)]
        out[f"low latency combine{name}"] = [transfer.ll_combine_us(gpu, k, t, 4.0, row, e, g) for e in (48.0, 288.0)]
        out[f"one-sided{name}"] = [transfer.alltoall_one_sided_us(gpu, k, t, r, row, g, reads=reads) for reads in (False, True)]
        out[f"fifo{name}"] = [
            transfer.fifo_copy_us(gpu, k, row, gs, fields=fields, low_precision=low)
            for gs in (8.0, 9.0, 33.0)
            for fields in (1, 3)
            for low in (False, True)
        ]
        out[f"two-sided{name}"] = [
            transfer.alltoall_two_sided_us(gpu, k, t, r, row, g, copy, *more) for copy in (1e-3, 2.0) for more in ((), (9000.0,))
        ]
        out[f"mori{name}"] = [transfer.mori_dispatch_us(gpu, k, t, r, row, g), transfer.mori_combine_us(gpu, k, t, r, row, g, 3 * row)]
    out["prepare"] = transfer.alltoall_prepare_us(gpu, c, t, g)
    out["grid"] = transfer.ll_grid(gpu, [1.0, gpu.n_sms, gpu.n_sms + 1.0, 3.0 * gpu.n_sms])
    out["copies"] = [expected_copies(4, 12, 3), expected_copies(8, 64, 6), transfer.summed_bytes(7000.0, 3)]
    return out


def library_tiles(gpu: Gpu) -> Columns:
    """The tiles of every library for many shapes, by rows of the output."""
    out: Columns = {}
    n, k = (axis.ravel() for axis in np.meshgrid([64.0, 576.0, 1280.0, 1281.0, 2048.0, 7168.0], [512.0, 4096.0]))
    for library in gemm_tiles.LIBRARIES:
        for m in (1.0, 16.0, 17.0, 32.0, 33.0, 64.0, 65.0, 128.0, 129.0, 256.0, 257.0, 700.0, 4096.0):
            groups = 1.0 if library in ("cutlass", "deepgemm") else 3.0
            found = gemm_tiles.tiles_of(library, gpu, gemm_tiles.Problem(np.full_like(n, m), n, k, np.full_like(n, groups)))
            sides = [np.stack(np.broadcast_arrays(*tile, n)[:-1]).reshape(len(tile), -1, len(n)) for tile in found]
            out[f"{library} {m:g}"] = [list(one) for several in zip(*(side.swapaxes(0, 1) for side in sides), strict=True) for one in several]
    for library in ("cublas", "cutlass", "deepgemm-masked"):
        peak = 1e6 * gpu.fp8_TFLOPS or 1e9
        out[f"{library}, rate"] = [gemm_tiles.hides_stores(library, gpu), *(gemm_tiles.promoted(library, gpu, d, peak) for d in ("bf16", "fp8"))]
    return out | {"feed": gemm_tiles.feed(gpu, "cublas", 1.0, 1e6 * gpu.bf16_TFLOPS, np.array([64.0, 128.0, 256.0]), np.array([64.0, 96.0, 128.0]))}


def task_times(name: str) -> Columns:
    """`gemm`: tasks of Programs on a packaged cluster, with the test's constants on real ones."""
    cluster = load_cluster(name)
    if cluster.gpu:
        cluster = replace(cluster, constants=tuple(C.items()))
    share, rows = gemm.mean_share(96, 40.0), np.array([96, 96, 10, 96, 33], np.int32)
    own = gemm.tile_share(96, rows, np.array([3, 3, 3, 1, 1], np.int32))
    tasks = {
        "plain": gemm.tile_task(cluster, "fp8", 700, 1500, 96, share),
        "steps": gemm.tile_task(cluster, "bf16", 384, 1500, 96, own, 320, row_step=40, weight_bytes=1.03, part=0.7, fill_us=0.3),
        "small": gemm.tile_task(cluster, "bf16", 60, 96, 96, own * 9, 32_000),
        "gradient": gemm.weight_grad_task(cluster, "bf16", 700, 1500, 96, share),
        "large gradient": gemm.weight_grad_task(cluster, "fp8", 30_000, 9000, 96, share),
    }
    out: Columns = {f"{kind}, {part}": getattr(task, part)[::12] for kind, task in tasks.items() for part in ("ps", "bytes")}
    out["gangs"] = [gemm.gemm_gang(c) for c in (1, 128, 129, 700)] + [gemm.weight_grad_gang(*s) for s in ((700, 1500), (30_000, 9000), (99_000, 5))]
    tiling = gemm.Tiling(128)
    return out | {"share": share[::16], "own share": own[[0, 10, 33, 40, 96]], "tiling": [getattr(tiling, f) for f in tiling.__slots__]}


FORMS: dict[str, Callable[[Gpu], Columns]] = {
    "operators": operator_times, "attention": attention_times, "linear attention": delta_times, "collectives": collective_times,
    "kernels": kernel_times, "experts": expert_times, "transfers": transfer_times, "tiles": library_tiles,
}  # fmt: skip
CASES: Cases = {
    **{f"{name} {gpu}": (lambda form=form, gpu=gpu: form(load_gpu(gpu))) for name, form in FORMS.items() for gpu in GPUS},  # type: ignore[misc]
    "attention tiles": attention_tiles,
    **{f"tasks {cluster}": partial(task_times, cluster) for cluster in ("paper-gh200-nvl32", "hw-dgx-h100", "hw-dgx-b200", "hw-mi300x")},
}
PARTS = parts_of(CASES, *FORMS, "tasks")
