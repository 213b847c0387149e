"""The verb `measure`: times of kernels, collectives and whole pieces of a model on this machine by PyTorch, as rows of `calibrate` and `validate`.

`families/whole.py` of `measured` predicts the whole pieces: what `_layer` does stands there as operators.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

from dysharp.base.errors import ConfigError, check_word, show
from dysharp.base.files import check_destination, write_text
from dysharp.base.text import csv_text
from dysharp.functional.torch.extra import require_torch
from dysharp.measured.measurements import COLUMNS, Measurement, read_measurements
from dysharp.specs import load_whole

GEMMS = ((128, 4096, 7168), (512, 4096, 7168), (2048, 4096, 7168), (8192, 4096, 7168), (8192, 7168, 2048), (4096, 8192, 8192), (8192, 2112, 7168))
GROUPED = ((64, 32), (256, 32), (1024, 32), (256, 8), (4096, 8))  # rows per expert, experts
EXPERT = ((4096, 7168), (7168, 2048))  # columns and depth of the two GEMMs of a DeepSeek-V3 expert
PREFILL = ((1, 4096, 32, 8), (4, 4096, 32, 8), (1, 16384, 16, 2), (16, 512, 32, 32))  # requests, tokens of each, heads, key-value heads
DECODE = ((1, 4096, 32, 8), (32, 4096, 32, 8), (128, 2048, 16, 2))  # requests, cached tokens, heads, key-value heads
HEAD = 128  # width of a head
NORM_ROWS, NORM_WIDTHS = 4096, (2048, 4096, 8192, 16384)
COPY_BYTES = 1 << 30
COLLECTIVE_BYTES = tuple(1 << shift for shift in range(21, 29))
MODELS = ("llama3-8b", "qwen3-30b")
SEQUENCES, SEQUENCE = 2, 4096
LAYERS, CONTEXT, BATCHES = 4, 4096, (8, 64)
WARM, REPEATS, GRAPH = 5, 20, 10
LAUNCHES = 1000
MOST_ROWS = 1 << 20
SMALL = 16
"""Without a GPU sizes are so many times smaller: a rehearsal."""
OnRow = Callable[[int, int, str], None]
"""Called with (done, total, what comes next)."""


class Job(NamedTuple):
    """A row to measure. `moved`: bytes, where the row is a bandwidth; else it is a latency."""

    kind: str
    system: str
    config: dict[str, Any]
    us: Callable[[], float]
    moved: int = 0

    @property
    def key(self) -> str:
        """Equal for a job and the row that it made."""
        return json.dumps([self.kind, self.system, self.config], sort_keys=True)


class Device:
    """Where PyTorch computes: "cuda" or "cpu", as rank `rank` of `gpus`."""

    def __init__(self, torch: Any, kind: str, gpus: int = 1, rank: int = 0) -> None:
        self.torch, self.kind, self.gpus, self.rank, self.small = torch, kind, gpus, rank, 1 if kind == "cuda" else SMALL

    @property
    def timing(self) -> str:
        """How `us` times."""
        return "cuda graph" if self.kind == "cuda" else "eager"

    def of(self, *sizes: int) -> tuple[int, ...]:
        """Sizes on this device."""
        return tuple(max(1, size // self.small) for size in sizes)

    def values(self, *shape: int, grad: bool = False) -> Any:
        """Normal values in BF16."""
        return self.torch.randn(*shape, device=self.kind, dtype=self.torch.bfloat16, requires_grad=grad)

    def us(self, call: Callable[[], object], *, graph: bool = True) -> float:
        """Median time of one call on the device, from a CUDA graph of `GRAPH` calls (so that the host is not measured) or call by call."""
        if self.kind == "cpu":
            call()
            return statistics.median(_seconds(call) for _ in range(WARM)) * 1e6
        cuda = self.torch.cuda
        for _ in range(WARM):
            call()
        cuda.synchronize()
        each, run = 1, call
        if graph:
            captured = cuda.CUDAGraph()
            with cuda.graph(captured):
                for _ in range(GRAPH):
                    call()
            each, run = GRAPH, captured.replay
            run()
        return statistics.median(self.between(run) / each for _ in range(REPEATS))

    def between(self, run: Callable[[], object]) -> float:
        """Time from before `run` to behind it, by events."""
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        return 1e3 * float(begin.elapsed_time(end))


def _seconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def kernels(d: Device, models: Sequence[str] = ()) -> Iterator[Job]:
    """GEMMs (BF16 and, where the GPU has it, FP8 with one scale per tensor), attention, norms, a copy, launches."""
    torch, bf16 = d.torch, {"dtype": "bfloat16"}
    fp8 = d.kind == "cuda" and torch.cuda.get_device_capability() >= (8, 9)
    for m, n, k in (d.of(*shape) for shape in GEMMS):
        shape = {"m": m, "n": n, "k": k, "timing": d.timing}
        yield Job("gemm_dense", "torch matmul", bf16 | shape, partial(_gemm_us, d, m, n, k))
        if fp8:
            yield Job("gemm_dense", "torch scaled_mm", {"dtype": "fp8 per tensor"} | shape, partial(_gemm_us, d, m, n, k, fp8=True))
    for rows, groups in GROUPED:
        for n, k in (d.of(*shape) for shape in EXPERT):
            (each,) = d.of(rows)
            config = {"dtype": "bf16", "m_per_group": each, "groups": groups, "n": n, "k": k}
            yield Job("grouped_gemm_contiguous", "torch grouped_mm", config, partial(_grouped_us, d, each, groups, n, k))
    yield from _attentions(d)
    norm_rows, *widths = d.of(NORM_ROWS, *NORM_WIDTHS)
    for width in widths:
        config = {"B": 1, "S": norm_rows, "H": width, "dtype": "bf16", "pass": "forward", "provider": "torch", "timing": d.timing}
        yield Job("rmsnorm", "torch rms_norm", config, partial(_norm_us, d, norm_rows, width))
    (size,) = d.of(COPY_BYTES)
    yield Job("hbm_bandwidth", "torch copy", {"bytes": size}, partial(_copy_us, d, size), 2 * size)
    one = torch.zeros(1, device=d.kind)
    if d.kind == "cuda":
        yield Job("kernel_launch", "torch add", {"timing": d.timing}, lambda: d.us(lambda: one.add_(1)))
    yield Job("kernel_launch", "torch add", {"timing": "eager"}, lambda: d.us(lambda: [one.add_(1) for _ in range(LAUNCHES)], graph=False) / LAUNCHES)


def _gemm_us(d: Device, m: int, n: int, k: int, fp8: bool = False) -> float:
    torch, a, b = d.torch, d.values(m, k), d.values(n, k)
    if not fp8:
        return d.us(lambda: a @ b.t())
    one, a8, b8 = torch.ones((), device=d.kind), a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
    return d.us(lambda: torch._scaled_mm(a8, b8.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16))


def _grouped_us(d: Device, rows: int, groups: int, n: int, k: int) -> float:
    a, b = d.values(rows * groups, k), d.values(groups, n, k).transpose(-2, -1)
    ends = d.torch.arange(rows, rows * groups + 1, rows, device=d.kind, dtype=d.torch.int32)
    return d.us(lambda: d.torch._grouped_mm(a, b, offs=ends))


def _attentions(d: Device) -> Iterator[Job]:
    """Causal prefill, forward and backward, and one token against a cache. The backward kernel is timed with its launch."""
    for batch, length, many, few in PREFILL:
        (tokens,) = d.of(length)
        config = {"batch": batch, "q_len": tokens, "past_len": 0, "heads": many, "dtype": "bfloat16", "kernel": "torch sdpa"}
        forward = config | {"kv_heads": few, "head_dim": HEAD, "kv_dtype": "bfloat16"}
        yield Job("attention_context", "torch sdpa", forward, partial(_attention_us, d, batch, tokens, tokens, many, few))
        backward = config | {"kv_heads": many, "qk_dim": HEAD, "v_dim": HEAD, "timing": "eager"}
        yield Job("attention_train_bwd", "torch sdpa", backward, partial(_attention_us, d, batch, tokens, tokens, many, many, back=True))
    for batch, length, many, few in DECODE:
        (cached,) = d.of(length)
        config = {"batch": batch, "q_len": 1, "past_len": cached - 1, "heads": many, "kv_heads": few, "dtype": "bfloat16", "kernel": "torch sdpa"}
        config |= {"head_dim": HEAD, "kv_dtype": "bfloat16"}
        yield Job("attention_generation", "torch sdpa", config, partial(_attention_us, d, batch, 1, cached, many, few))


def _attention_us(d: Device, batch: int, tokens: int, seen: int, heads: int, kv_heads: int, back: bool = False) -> float:
    q, k, v = (d.values(batch, n, t, HEAD, grad=back) for n, t in ((heads, tokens), (kv_heads, seen), (kv_heads, seen)))

    def call() -> Any:
        return d.torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=tokens > 1, enable_gqa=heads > kv_heads)

    if not back:
        return d.us(call)
    out, gradient = call(), d.values(batch, heads, tokens, HEAD)
    return d.us(lambda: d.torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True), graph=False)


def _norm_us(d: Device, rows: int, width: int) -> float:
    x, weight = d.values(rows, width), d.torch.ones(width, device=d.kind, dtype=d.torch.bfloat16)
    return d.us(lambda: d.torch.nn.functional.rms_norm(x, (width,), weight))


def _copy_us(d: Device, size: int) -> float:
    source, target = (d.torch.empty(size, device=d.kind, dtype=d.torch.uint8) for _ in range(2))
    return d.us(lambda: target.copy_(source), graph=False)


def collectives(d: Device, models: Sequence[str] = ()) -> Iterator[Job]:
    """NCCL between all GPUs of the node; every rank takes part, the slowest counts. Sizes as in nccl-tests."""
    if d.gpus == 1:
        return
    dist = d.torch.distributed
    calls: dict[str, Callable[[Any, Any, Any], object]] = {
        "nccl_alltoall": lambda whole, other, part: dist.all_to_all_single(other, whole),
        "nccl_all_gather": lambda whole, other, part: dist.all_gather_into_tensor(whole, part),
        "nccl_reduce_scatter": lambda whole, other, part: dist.reduce_scatter_tensor(part, whole),
    }
    for size in d.of(*COLLECTIVE_BYTES):
        for kind, call in calls.items():
            yield Job(kind, "NCCL", {"bytes": size, "gpus": d.gpus, "dtype": "bf16"}, partial(_collective_us, d, size, call))


def _collective_us(d: Device, size: int, call: Callable[[Any, Any, Any], object]) -> float:
    whole, other, part = (d.torch.zeros(n // 2, device=d.kind, dtype=d.torch.bfloat16) for n in (size, size, size // d.gpus))
    return _largest(d, d.us(lambda: call(whole, other, part), graph=False))


def _largest(d: Device, value: float) -> float:
    """The largest value of all ranks."""
    every = d.torch.tensor([value], device=d.kind)
    if d.gpus > 1:
        d.torch.distributed.all_reduce(every, op=d.torch.distributed.ReduceOp.MAX)
    return float(every)


class Shape(NamedTuple):
    """A decoder layer; widths in elements. `experts` 0: a dense FFN."""

    model: str
    hidden: int
    heads: int
    kv_heads: int
    inner: int
    experts: int
    topk: int
    normed: bool


def shape_of(name: str, small: int = 1) -> Shape:
    """The last layer of a packaged model, `small` times as narrow. Raises `ConfigError` for what `_layer` does not do."""
    model = load_whole(name)
    a, layer = model.attention, model.layer
    odd = {
        "attention": (a.kind, a.head_dim) != ("gqa", HEAD) or a.window or a.sinks or a.gated or a.qkv_bias or a.out_bias or model.linear,
        "FFN": model.shared_hidden or model.latent_experts or model.expert_bias or model.dense_bias or model.stack,
        "matrices": (layer.n_matrices if layer else model.dense_matrices) != 3,
    }
    if wrong := [what for what, found in odd.items() if found]:
        expected = f"expected grouped queries of {HEAD} elements, gated FFN and no bias, such as {MODELS[0]}"
        raise ConfigError(f"measure: models: found {name} ({wrong[0]}), {expected}")
    inner, experts, topk = (layer.expert_hidden, layer.n_experts, layer.topk) if layer else (model.dense_hidden, 0, 0)
    many = max(1, experts // small) if experts else 0
    hidden, heads, kv_heads, inner = (max(1, n // small) for n in (model.hidden, a.heads, a.kv_heads, inner))
    return Shape(name, hidden, heads, kv_heads, inner, many, min(topk, many), a.qk_norm)


class _Weights(NamedTuple):
    norm: Any
    qkv: Any
    qk_norm: Any
    out: Any
    first: Any
    second: Any
    router: Any


def _weights(d: Device, s: Shape, grad: bool) -> _Weights:
    """Normal weights that keep the size of rows."""

    def matrix(*shape: int) -> Any:
        return (d.values(*shape) * shape[-1] ** -0.5).requires_grad_(grad)

    attended, groups = s.heads * HEAD, (s.experts,) if s.experts else ()
    first, second = matrix(*groups, 2 * s.inner, s.hidden), matrix(*groups, s.hidden, s.inner)
    return _Weights(
        matrix(s.hidden), matrix(attended + 2 * s.kv_heads * HEAD, s.hidden), matrix(HEAD), matrix(s.hidden, attended), first, second,
        matrix(max(1, s.experts), s.hidden),
    )  # fmt: skip


def _layer(d: Device, s: Shape, w: _Weights, x: Any, turn: Any, cache: tuple[Any, Any, Any] | None = None) -> Any:
    """A decoder layer on `x` `[sequences, tokens, hidden]`, causal; with a `cache` (keys, values, place) one token against it. Nothing waits for the
    host, so that a graph can hold it.
    """
    torch, f, (batch, tokens, _) = d.torch, d.torch.nn.functional, x.shape
    joint = s.heads + s.kv_heads
    qk, v = (f.rms_norm(x, (s.hidden,), w.norm) @ w.qkv.t()).view(batch, tokens, -1, HEAD).split((joint, s.kv_heads), 2)
    qk = f.rms_norm(qk, (HEAD,), w.qk_norm) if s.normed else qk
    turned = torch.view_as_complex(qk.float().unflatten(-1, (HEAD // 2, 2))) * turn
    q, k = torch.view_as_real(turned).flatten(-2).to(x.dtype).split((s.heads, s.kv_heads), 2)
    if cache:
        keys, values, place = cache
        k, v = keys.index_copy_(1, place, k), values.index_copy_(1, place, v)
    seen = f.scaled_dot_product_attention(*(one.transpose(1, 2) for one in (q, k, v)), is_causal=tokens > 1, enable_gqa=s.heads > s.kv_heads)
    x = x + seen.transpose(1, 2).reshape(batch, tokens, -1) @ w.out.t()
    rows = f.rms_norm(x, (s.hidden,), w.norm)
    return x + (_experts(d, s, w, rows.flatten(0, 1)).view_as(x) if s.experts else _gated(f, rows @ w.first.t()) @ w.second.t())


def _gated(f: Any, both: Any) -> Any:
    gate, up = both.chunk(2, -1)
    return f.silu(gate) * up


def _experts(d: Device, s: Shape, w: _Weights, rows: Any) -> Any:
    """Rows `[tokens, hidden]` through the experts that a router chooses, sorted by expert."""
    torch = d.torch
    scores, chosen = (rows @ w.router.t()).float().softmax(-1).topk(s.topk)
    order = chosen.flatten().argsort()
    ends = (chosen.flatten()[:, None] == torch.arange(s.experts, device=d.kind)).sum(0).cumsum(0).to(torch.int32)
    token = order // s.topk
    inner = torch._grouped_mm(rows.index_select(0, token), w.first.transpose(-2, -1), offs=ends)
    done = torch._grouped_mm(_gated(torch.nn.functional, inner), w.second.transpose(-2, -1), offs=ends)
    part = (scores / scores.sum(-1, keepdim=True)).flatten().index_select(0, order).to(rows.dtype)
    return torch.zeros_like(rows).index_add(0, token, done * part[:, None])


def _turn(d: Device, *places: int) -> Any:
    """What positions turn pairs of elements by, `[places, 1, HEAD / 2]`."""
    speed = 1e4 ** (-d.torch.arange(HEAD // 2, device=d.kind) / (HEAD // 2))
    angle = d.torch.tensor(places, device=d.kind)[:, None, None] * speed
    return d.torch.polar(d.torch.ones_like(angle), angle)


def blocks(d: Device, models: Sequence[str]) -> Iterator[Job]:
    """A decoder layer over whole sequences, forward, and forward and backward. The host runs ahead of the device."""
    (tokens,) = d.of(SEQUENCE)
    for s in (shape_of(name, d.small) for name in models):
        config = {"model": s.model, "batch": SEQUENCES, "tokens": tokens, "dtype": "bf16", "timing": "eager"}
        for way in ("forward", "forward and backward"):
            yield Job("decoder_block", "torch", _rehearsed(d, config | {"pass": way}), partial(_block_us, d, s, tokens, way != "forward"))


def _rehearsed(d: Device, config: dict[str, Any]) -> dict[str, Any]:
    return config | {"narrower": d.small} if d.small > 1 else config


def _block_us(d: Device, s: Shape, tokens: int, back: bool) -> float:
    w, x, turn = _weights(d, s, back), d.values(SEQUENCES, tokens, s.hidden, grad=back), _turn(d, *range(tokens))
    if not back:
        return d.us(lambda: _layer(d, s, w, x, turn), graph=False)
    gradient = d.values(*x.shape)
    return d.us(lambda: d.torch.autograd.grad(_layer(d, s, w, x, turn), (x, *w), gradient, allow_unused=True), graph=False)


def decodes(d: Device, models: Sequence[str]) -> Iterator[Job]:
    """A decode step of `LAYERS` layers under a graph, without embedding and head."""
    (context,) = d.of(CONTEXT)
    for s in (shape_of(name, d.small) for name in models):
        for batch in BATCHES:
            config = {"model": s.model, "layers": LAYERS, "batch": batch, "context": context, "dtype": "bf16", "timing": d.timing}
            yield Job("decode_step", "torch", _rehearsed(d, config), partial(_decode_us, d, s, batch, context))


def _decode_us(d: Device, s: Shape, batch: int, context: int) -> float:
    w, x, turn = _weights(d, s, False), d.values(batch, 1, s.hidden), _turn(d, context - 1)
    caches = [tuple(d.values(batch, context, s.kv_heads, HEAD) for _ in range(2)) for _ in range(LAYERS)]
    place = d.torch.tensor([context - 1], device=d.kind)

    def step() -> Any:
        rows = x
        for keys, values in caches:
            rows = _layer(d, s, w, rows, turn, (keys, values, place))
        return rows

    with d.torch.no_grad():
        return d.us(step)


PARTS: dict[str, Callable[..., Iterator[Job]]] = {"kernels": kernels, "collectives": collectives, "block": blocks, "decode": decodes}


def measure(
    out: str | os.PathLike[str], only: Sequence[str] = tuple(PARTS), minutes: float | None = None, models: Sequence[str] = MODELS,
    on_row: OnRow = lambda done, total, text: None,
) -> dict[str, Any]:  # fmt: skip
    """Measure what `out` does not have yet, and write it row by row.

    Returns `path`, `rows`, `hardware`, what was `refused` with the reason, and how many are `left` after `minutes`. Under torchrun collectives are
    measured between its ranks; ranks but 0 write and return nothing. Raises `ConfigError`, without PyTorch too.
    """
    path = check_destination(out, ".csv")
    for part in only:
        check_word(part, PARTS, f"measure: only: found {show(part)}")
    require_torch()
    import torch

    begun, gpus, rank = time.monotonic(), int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
    d = Device(torch, "cuda" if torch.cuda.is_available() else "cpu", gpus, rank)
    if d.kind == "cuda":
        torch.cuda.set_device(rank)
    hardware = f"{gpus}x {torch.cuda.get_device_name() if d.kind == 'cuda' else 'CPU'}"
    source = f"dysharp measure, torch {torch.__version__}, CUDA {torch.version.cuda}"
    rows = read_measurements(path) if path.exists() else []
    done = {Job(row.kind, row.system, dict(row.config), float).key for row in rows if row.hardware == hardware}
    jobs = [job for part in dict.fromkeys(only) if rank == 0 or part == "collectives" for job in PARTS[part](d, models) if job.key not in done]
    if gpus > 1:
        own = torch.device(d.kind, rank) if d.kind == "cuda" else None
        torch.distributed.init_process_group("nccl" if own else "gloo", device_id=own)
    refused, left = dict[str, str](), 0
    for place, job in enumerate(jobs):
        late = minutes is not None and time.monotonic() - begun > 60 * minutes
        if _largest(d, float(late)) if job.kind.startswith("nccl") else late:
            left += 1
            continue
        if rank == 0:
            on_row(place, len(jobs), f"{job.kind} {', '.join(map(str, job.config.values()))}")
        try:
            us = job.us()
        except (AttributeError, RuntimeError) as error:  # this PyTorch or this GPU does not have it
            refused[job.key] = str(error).splitlines()[0]
            continue
        told = ("bandwidth", job.moved / us / 1e3, "GB/s") if job.moved else ("latency", us, "us")
        name = next(name for n in range(len(rows) + 1, MOST_ROWS) if (name := f"mine-{n:04}") not in {row.id for row in rows})
        rows.append(Measurement(name, job.kind, job.system, hardware, job.config, *told, source))
        if rank == 0:
            write_rows(path, rows)
    if gpus > 1:
        torch.distributed.destroy_process_group()
    return {"path": str(path), "rows": len(rows), "hardware": hardware, "refused": refused, "left": left} if rank == 0 else {}


def write_rows(path: str | os.PathLike[str], rows: Sequence[Measurement]) -> None:
    """Rows in the columns that `calibrate` and `validate` read; nothing is left half-written."""
    lines = [(asdict(row) | {"config": json.dumps(dict(row.config), sort_keys=True), "value": f"{row.value:.6g}"}).values() for row in rows]
    write_text(path, csv_text(COLUMNS, map(tuple, lines)))
