"""The verb `measure`: times of kernels, collectives and whole pieces of a model on this machine by PyTorch, as rows of `calibrate` and `validate`.

What is measured stands in `measured/measure.toml`. `measured/families/blocks.py` predicts whole pieces: what `_layer` does stands there as operators.
"""

import json
import os
import statistics
import time
import timeit
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial, reduce
from itertools import count, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dysharp.base import AnyMapping, AnyPath, ByName, Cells, ConfigError, check_destination, check_word, csv_text, read_toml, show, write_text
from dysharp.functional.torch.extra import require_torch
from dysharp.measured.families.blocks import HEAD, unlike
from dysharp.measured.measurements import COLUMNS, Measurement, read_measurements
from dysharp.specs import load_whole

FILE = Path(__file__).parents[1] / "measured" / "measure.toml"
MODELS, PARTS = ("llama3-8b", "qwen3-30b"), ("kernels", "collectives", "block", "decode")
WHOLE = PARTS[2:]
WARM, REPEATS, GRAPH, LAUNCHES = 5, 20, 10, 1000
SMALL, KEPT = 16, ("batch", "heads", "kv_heads", "groups", "layers")
"""Without a GPU sizes are so many times smaller, but for `KEPT`: a rehearsal."""
OnRow = Callable[[int, int, str], None]
"""Called with (done, total, what comes next)."""


Config = AnyMapping


class Device:
    """Where PyTorch computes: "cuda" or "cpu", as one of `gpus` ranks."""

    def __init__(self, torch: Any, kind: str, gpus: int = 1, name: str = "") -> None:
        self.torch, self.kind, self.gpus, self.small, self.hardware = torch, kind, gpus, 1 if kind == "cuda" else SMALL, f"{gpus}x {name}"

    def values(self, *shape: int, grad: bool = False) -> Any:
        """Normal values in BF16."""
        return self.torch.randn(*shape, device=self.kind, dtype=self.torch.bfloat16, requires_grad=grad)

    def us(self, call: Callable[[], object], *, graph: bool = True) -> float:
        """Median time of one call on the device, from a CUDA graph of `GRAPH` calls (so that the host is not measured) or call by call."""
        for _ in range(WARM):
            call()
        if self.kind == "cpu":
            return statistics.median(timeit.repeat(call, number=1, repeat=WARM)) * 1e6
        cuda, each, run, times = self.torch.cuda, 1, call, list[float]()
        cuda.synchronize()
        if graph:
            captured = cuda.CUDAGraph()
            with cuda.graph(captured):
                for _ in range(GRAPH):
                    call()
            each, run = GRAPH, captured.replay
            run()
        for _ in range(REPEATS):
            begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            end.synchronize()
            times.append(1e3 * begin.elapsed_time(end) / each)
        return statistics.median(times)


def _gemm_us(d: Device, c: Config) -> float:
    """BF16, or FP8 with one scale per tensor."""
    torch, a, b = d.torch, d.values(c["m"], c["k"]), d.values(c["n"], c["k"])
    if c["dtype"] == "bfloat16":
        return d.us(lambda: a @ b.t())
    one, a8, b8 = torch.ones((), device=d.kind), a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
    return d.us(lambda: torch._scaled_mm(a8, b8.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16))


def _grouped_us(d: Device, c: Config) -> float:
    rows, each = c["m_per_group"] * c["groups"], c["m_per_group"]
    a, b = d.values(rows, c["k"]), d.values(c["groups"], c["n"], c["k"]).transpose(-2, -1)
    ends = d.torch.arange(each, rows + 1, each, device=d.kind, dtype=d.torch.int32)
    return d.us(lambda: d.torch._grouped_mm(a, b, offs=ends))


def _attention_us(d: Device, c: Config) -> float:
    """Causal; one token sees the whole cache. Autograd is not captured in a graph."""
    back, tokens, kv = "timing" in c, c["q_len"], (c["batch"], c["kv_heads"], c["q_len"] + c["past_len"], HEAD)
    q, k, v = (d.values(*shape, grad=back) for shape in ((c["batch"], c["heads"], tokens, HEAD), kv, kv))
    call = partial(d.torch.nn.functional.scaled_dot_product_attention, q, k, v, is_causal=tokens > 1, enable_gqa=c["heads"] > c["kv_heads"])
    if not back:
        return d.us(call)
    out, gradient = call(), d.values(*q.shape)
    return d.us(lambda: d.torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True), graph=False)


def _norm_us(d: Device, c: Config) -> float:
    x, weight = d.values(c["S"], c["H"]), d.values(c["H"])
    return d.us(lambda: d.torch.nn.functional.rms_norm(x, weight.shape, weight))


def _copy_us(d: Device, c: Config) -> float:
    source, target = (d.torch.empty(c["bytes"], device=d.kind, dtype=d.torch.uint8) for _ in range(2))
    return d.us(lambda: target.copy_(source), graph=False)


def _launch_us(d: Device, c: Config) -> float:
    one, times = d.torch.zeros(1, device=d.kind), LAUNCHES if c["timing"] == "eager" else 1
    return d.us(lambda: [one.add_(1) for _ in range(times)], graph=times == 1) / times


def _collective_us(d: Device, c: Config, call: str, *takes: int) -> float:
    """Every rank takes part, the slowest counts. Sizes as in nccl-tests. `takes`: places of its tensors, of whole, whole and a part."""
    tensors = [d.torch.zeros(c["bytes"] // 2 // (1, 1, d.gpus)[place], device=d.kind, dtype=d.torch.bfloat16) for place in takes]
    return _largest(d, d.us(lambda: getattr(d.torch.distributed, call)(*tensors), graph=False))


def _largest(d: Device, value: float) -> float:
    """The largest value of all ranks."""
    every = d.torch.tensor([value], device=d.kind)
    d.torch.distributed.all_reduce(every, op=d.torch.distributed.ReduceOp.MAX)
    return float(every)


def _layer_of(d: Device, name: str, grad: bool = False) -> SimpleNamespace:
    """Widths and normal weights, which keep the size of rows, of the last layer of a packaged model."""
    model = load_whole(name)
    a, layer = model.attention, model.layer
    widths = (model.hidden, a.heads, a.kv_heads, layer.expert_hidden if layer else model.dense_hidden, layer.n_experts if layer else 0)
    hidden, heads, kv_heads, inner, experts = (max(1, n // d.small) if n else 0 for n in widths)

    def matrix(*shape: int) -> Any:
        return (d.values(*shape) * shape[-1] ** -0.5).requires_grad_(grad)

    groups = (experts,) if experts else ()
    shapes = {"norm": (hidden,), "qkv": ((heads + 2 * kv_heads) * HEAD, hidden), "out": (hidden, heads * HEAD), "first": (*groups, 2 * inner, hidden),
              "second": (*groups, hidden, inner), "router": (experts, hidden), "qk_norm": (a.qk_norm * HEAD,)}  # fmt: skip
    weights = {key: matrix(*shape) for key, shape in shapes.items() if shape[0]}
    sizes = {"hidden": hidden, "heads": heads, "kv_heads": kv_heads, "experts": experts, "topk": min(layer.topk, experts) if layer else 0}
    return SimpleNamespace(**sizes, **weights, weights=(*weights.values(),))


def _layer(d: Device, w: Any, x: Any, turn: Any, cache: tuple[Any, Any, Any] | None = None) -> Any:
    """A decoder layer on `x` `[sequences, tokens, hidden]`, causal; with a `cache` (keys, values, place) one token against it. Nothing waits for the
    host, so that a graph can hold it.
    """
    torch, f, (batch, tokens, _) = d.torch, d.torch.nn.functional, x.shape
    qk, v = (f.rms_norm(x, (w.hidden,), w.norm) @ w.qkv.t()).view(batch, tokens, -1, HEAD).split((w.heads + w.kv_heads, w.kv_heads), 2)
    qk = f.rms_norm(qk, (HEAD,), w.qk_norm) if hasattr(w, "qk_norm") else qk
    turned = torch.view_as_complex(qk.float().unflatten(-1, (HEAD // 2, 2))) * turn
    q, k = torch.view_as_real(turned).flatten(-2).to(x.dtype).split((w.heads, w.kv_heads), 2)
    if cache:
        k, v = (held.index_copy_(1, cache[2], new) for held, new in zip(cache, (k, v), strict=False))
    seen = f.scaled_dot_product_attention(*(one.transpose(1, 2) for one in (q, k, v)), is_causal=tokens > 1, enable_gqa=w.heads > w.kv_heads)
    x = x + seen.transpose(1, 2).reshape(batch, tokens, -1) @ w.out.t()
    rows = f.rms_norm(x, (w.hidden,), w.norm)
    return x + (_experts(d, w, rows.flatten(0, 1)).view_as(x) if w.experts else _gated(f, rows @ w.first.t()) @ w.second.t())


def _gated(f: Any, both: Any) -> Any:
    gate, up = both.chunk(2, -1)
    return f.silu(gate) * up


def _experts(d: Device, w: Any, rows: Any) -> Any:
    """Rows `[tokens, hidden]` through the experts that a router chooses, sorted by expert."""
    torch = d.torch
    scores, chosen = (rows @ w.router.t()).float().softmax(-1).topk(w.topk)
    order = chosen.flatten().argsort()
    ends = (chosen.flatten()[:, None] == torch.arange(w.experts, device=d.kind)).sum(0).cumsum(0).to(torch.int32)
    token = order // w.topk
    inner = torch._grouped_mm(rows.index_select(0, token), w.first.transpose(-2, -1), offs=ends)
    done = torch._grouped_mm(_gated(torch.nn.functional, inner), w.second.transpose(-2, -1), offs=ends)
    part = (scores / scores.sum(-1, keepdim=True)).flatten().index_select(0, order).to(rows.dtype)
    return torch.zeros_like(rows).index_add(0, token, done * part[:, None])


def _turn(d: Device, *places: int) -> Any:
    """What positions turn pairs of elements by, `[places, 1, HEAD / 2]`."""
    angle = d.torch.tensor(places, device=d.kind)[:, None, None] * 1e4 ** (-d.torch.arange(HEAD // 2, device=d.kind) / (HEAD // 2))
    return d.torch.polar(d.torch.ones_like(angle), angle)


def _block_us(d: Device, c: Config) -> float:
    """The host runs ahead of the device."""
    back, turn = c["pass"] != "forward", _turn(d, *range(c["tokens"]))
    w = _layer_of(d, c["model"], back)
    x, gradient = (d.values(c["batch"], c["tokens"], w.hidden, grad=grad) for grad in (back, False))
    forward = partial(_layer, d, w, x, turn)
    return d.us((lambda: d.torch.autograd.grad(forward(), (x, *w.weights), gradient)) if back else forward, graph=False)


def _decode_us(d: Device, c: Config) -> float:
    w, last = _layer_of(d, c["model"]), c["context"] - 1
    x, turn, place = d.values(c["batch"], 1, w.hidden), _turn(d, last), d.torch.tensor([last], device=d.kind)
    caches = [[d.values(c["batch"], c["context"], w.kv_heads, HEAD) for _ in range(2)] for _ in range(c["layers"])]
    return d.us(lambda: reduce(lambda rows, cache: _layer(d, w, rows, turn, (*cache, place)), caches, x))


CALLS: dict[str, Callable[[Device, Config], float]] = {
    "gemm_dense": _gemm_us, "grouped_gemm_contiguous": _grouped_us, "rmsnorm": _norm_us, "hbm_bandwidth": _copy_us, "kernel_launch": _launch_us,
    **dict.fromkeys(("attention_context", "attention_train_bwd", "attention_generation"), _attention_us),
    "nccl_alltoall": lambda d, c: _collective_us(d, c, "all_to_all_single", 1, 0),
    "nccl_all_gather": lambda d, c: _collective_us(d, c, "all_gather_into_tensor", 0, 2),
    "nccl_reduce_scatter": lambda d, c: _collective_us(d, c, "reduce_scatter_tensor", 2, 0),
    "decoder_block": _block_us, "decode_step": _decode_us,
}  # fmt: skip


def to_measure(d: Device, part: str, models: Sequence[str] = MODELS) -> Iterator[Measurement]:
    """The rows of a part, without values. Raises `ConfigError` for a model whose layers are not those of `_layer`."""
    more = ({"refused": "sizes of a machine without a GPU"} if d.small > 1 else {}) | ({"gpus": d.gpus} if part == "collectives" else {})
    for row in read_toml(FILE)[part] if part != "collectives" or d.gpus > 1 else ():
        metric = ("bandwidth", None, "GB/s") if row["kind"] == "hbm_bandwidth" else ("latency", None, "us")
        for sizes, model in product(row["sizes"], models if part in WHOLE else [""]):
            scaled = {key: n if key in KEPT else n and max(1, n // d.small) for key, n in zip(row["keys"], sizes, strict=True)}
            if model and (why := unlike(load_whole(model))):
                raise ConfigError(f"measure: models: found {model} ({why}), expected layers such as those of {MODELS[0]}")
            config = row["config"] | more | scaled | ({"model": model} if model else {})
            yield Measurement("", row["kind"], row["system"], d.hardware, config, *metric, "dysharp measure")


def _key(row: Measurement) -> str:
    """Equal for a row and its measured self."""
    return json.dumps([row.kind, row.system, row.hardware, dict(row.config)], sort_keys=True)


def measure(
    out: AnyPath, only: Sequence[str] = PARTS, minutes: float | None = None, models: Sequence[str] = MODELS,
    on_row: OnRow = lambda done, total, text: None,
) -> ByName:  # fmt: skip
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
    if cuda := torch.cuda.is_available():
        torch.cuda.set_device(rank)
    d = Device(torch, "cuda" if cuda else "cpu", gpus, torch.cuda.get_device_name() if cuda else "CPU")
    rows = read_measurements(path) if path.exists() else []
    done, names, ids = {*map(_key, rows)}, {row.id for row in rows}, (f"mine-{n:04}" for n in count(len(rows) + 1))
    todo = [row for part in only if rank == 0 or part == "collectives" for row in to_measure(d, part, models) if _key(row) not in done]
    if gpus > 1:
        torch.distributed.init_process_group("nccl" if cuda else "gloo", device_id=torch.device("cuda", rank) if cuda else None)
    if gpus == 1 and set(only) == {"collectives"}:
        raise ConfigError("measure: only: found collectives and one process, expected torchrun --nproc-per-node N -m dysharp measure")
    refused, left = Cells(), 0
    for place, row in enumerate(todo):
        late = minutes is not None and time.monotonic() - begun > 60 * minutes
        if _largest(d, float(late)) if row.kind.startswith("nccl") else late:
            left += 1
            continue
        what = f"{row.kind} {', '.join(map(str, row.config.values()))}"
        if rank == 0:
            on_row(place, len(todo), what)
        try:
            us = CALLS[row.kind](d, row.config)
        except (AttributeError, RuntimeError) as error:  # this PyTorch or this GPU does not have it
            refused[what] = str(error).splitlines()[0]
            continue
        name, value = next(name for name in ids if name not in names), 2 * row.config["bytes"] / us / 1e3 if row.unit == "GB/s" else us
        rows.append(replace(row, id=name, value=value, source=f"{row.source}, torch {torch.__version__}"))
        if rank == 0:
            write_rows(path, rows)
    if gpus > 1:
        torch.distributed.destroy_process_group()
    return {"path": str(path), "rows": len(rows), "hardware": d.hardware, "refused": refused, "left": left} if rank == 0 else {}


def write_rows(path: AnyPath, rows: Sequence[Measurement]) -> None:
    """Rows in the columns that `calibrate` and `validate` read; nothing is left half-written."""
    lines = [(asdict(row) | {"config": json.dumps(dict(row.config), sort_keys=True), "value": f"{row.value:.6g}"}).values() for row in rows]
    write_text(path, csv_text(COLUMNS, map(tuple, lines)))
