"""Cases of `STORED`: requests, options, headers, late ranks, memory, leading tokens, what limits a Row, draws of studies."""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dysharp.analysis import Row as Result
from dysharp.base.errors import DysharpError
from dysharp.figures.studies.study import Draw, latin_hypercube, load_study
from dysharp.program.skew import Skew
from dysharp.runs import causes, formats, header, known, memory, options, packet_time, request, skew
from dysharp.runs.job import Job
from dysharp.runs.point import Point
from dysharp.runs.progress import Step
from dysharp.runs.store import digest_of
from dysharp.specs import Model, load_cluster, load_model
from dysharp.systems import all_systems, get_system
from tests.stored_values import Cases, Row, Table, digest

STORED = Table(__file__, close=2e-6, zero=1e-9, whole=True)
MODEL = Model("drawn", 96, 160, 24, 5, 40, 3, 2, "bf16", routing="lognormal:0.5")
DEFAULTS = {name: argument.default for name, argument in request.arguments_of(request.RequestArgs).items()}
Ask = Callable[..., Any]


def said(call: Callable[..., Any], *args: Any) -> str:
    """What a call gives, or the text with which it is refused."""
    try:
        return str(call(*args))
    except DysharpError as error:
        return f"{type(error).__name__}: {error}"


def flat(values: Any) -> Iterator[Any]:
    """All values of nested tables."""
    for one in values.values():
        yield from flat(one) if isinstance(one, dict) else (one,)


def asked(**given: Any) -> request.Request:
    """A request with defaults."""
    return request.make_request(DEFAULTS | {"model": MODEL, "cluster": "paper-gh200-nvl32", "gpus": 4, "tokens": 40} | given)  # type: ignore[arg-type]


def row(tokens: int, us: float, gemms: float, late: float = 0.0, **more: Any) -> Result:
    """A Row of `us`, of which GEMMs take `gemms` and begin `late` before Dispatch ends."""
    moved = us - gemms
    path = {"dispatch": 0.6 * moved, "gemm1": 0.7 * gemms, "gemm2": 0.3 * gemms, "combine": 0.4 * moved}
    begin = path["dispatch"] - late
    ends = ((0.0, path["dispatch"]), (begin, begin + path["gemm1"]), (begin + path["gemm1"], begin + gemms), (begin + gemms - late, us))
    phases = {name: {"start": start, "end": end} for name, (start, end) in zip(path, ends, strict=True)}
    values = {f.name: None for f in dataclasses.fields(Result)} | {
        "system": "deepep", "form": "paper", "tokens_per_gpu": tokens, "time_us": us, "path_us": path, "phases_us": phases, "bound_us": 0.8 * us,
        "bound_resource": "gpu[3].up", "workload_bound_us": 0.4 * us, "window": {}, "surroundings_us": {"cast_us": 0.1 * tokens},
        "attribution": {"link_up_us": 0.45 * us, "sm_us": 0.35 * us, "latency_us": 0.1 * us, "host_us": 0.1 * us}, "warnings": (), "header": (),
    }  # fmt: skip
    return Result(**(values | more))  # type: ignore[arg-type]


def windows() -> Iterator[Row]:
    """Estimates from the first tokens, and why there is none."""
    sets = {
        "line": (30.0, 50.0, 70.0, 90.0), "curve": (30.0, 52.0, 73.0, 93.0), "bent": (30.0, 40.0, 64.0, 90.0), "still": (30.0, 50.0, 50.0, 51.0),
    }  # fmt: skip
    for (name, times), gemms, bound in itertools.product(sets.items(), (None, 8.0), (0.8, 1.3)):
        rows = [dataclasses.replace(row(16 * n, us, 8.0), bound_us=bound * us, workload_bound_us=0.0) for n, us in enumerate(times, 1)]
        experts = [None if gemms is None else row(16 * n, gemms + 0.1 * n, gemms) for n in (1, 2, 3, 4, 8)]
        blocks = [known.Block(16 * n, one, free, 40 * n) for n, one, free in zip((1, 2, 3, 4, 8), [*rows, None], experts, strict=True)]
        made = known._Known(tuple(blocks[:4]), blocks[4], 0.0)
        of_row = known._gemms_are_alone(rows[-1]), known._gemms_us(rows[-1])
        yield f"{name} {gemms} {bound}", (*flat(made.window(made.off())), made.refusal(0.1, known.GROWTH), *of_row)
    for system, tokens, gpus in itertools.product((None, "deepep", "nvls-naive", "ideal", "dysharp"), (40, 20_000, 200_000), (4, 32)):
        chosen = all_systems().get(system or "")
        yield f"{system} {tokens} {gpus}", (known.layer_rows(asked(tokens=tokens, gpus=gpus), chosen),)


def limits() -> Iterator[Row]:
    """What limits a Row, in words."""
    for share, most, form, window in itertools.product((0.5, 0.8, 0.95), (0.45, 0.8), ("paper", "real"), ({}, {"tokens": 16, "time_us": 99.0})):
        causes_of = {"sm_us": most * 50, "link_up_us": (0.9 - most) * 50, "latency_us": 5.0}
        one = row(16, 50.0, most * 50, form=form, window=window, bound_us=share * 50, attribution=causes_of)
        yield f"{share} {most} {form} {bool(window)}", (causes.answer_of(one),)
    yield (
        "resources",
        (causes.resource_words(f"gpu[3].{name}") for name in ("up", "down", "memory", "sm", "sms", "hub.egress", "up.x", "up to gpu[4].down")),
    )
    for given in ({}, {"dispatch": "fp8"}, {"dispatch": "fp8", "combine": "rows", "n_sm": 24}):
        for size in (1, 2, 4):
            text = formats.formats_of("x", given, dataclasses.replace(MODEL, element_bytes=size))
            yield f"formats {given} {size}", (text, formats.rows_sent(text), formats.weights_of("x", given))
    for packets in (10.0, 5e7, 8e7, 2e9, 4e9, 1e11):
        yield f"{packets} packets", (packet_time.estimate_line(packets, gpus) for gpus in (4, 72))
    yield "shares", (Step("x", i, 4, "engine", done, total).share for i in (1, 3) for done, total in ((0, 0), (3, 8), (8, 8)))


def headers() -> Iterator[Row]:
    """Lines about inputs, and warnings of several systems as few."""
    wide = load_cluster("hw-dgx-h100-x8")
    assert wide.scale_out is not None
    nics = dataclasses.replace(wide.scale_out, oversubscription=2.0, slow_nics=((3, 0.5),), lost_nics=())
    worn = dataclasses.replace(wide, name="worn", scale_out=nics)
    slow = Skew((0, 0, 3_000_000, 1_500_000), (1.0, 1.25, 1.0, 1.0))
    for cluster, more in (
        ("paper-gh200-nvl32", {}),
        ("hw-dgx-h100", {"direction": "bwd"}), ("hw-mi300x", {}), ("hw-mi300x-x2", {"gpus": 16}),
        ("paper-gh200-nvl32-x2", {"gpus": 64, "placement": "eplb:slots=64"}), (worn, {"gpus": 16}),
    ):  # fmt: skip
        one = asked(cluster=cluster, tokens=8, **more)
        for shown in (one, dataclasses.replace(one, precision=0.005), dataclasses.replace(one, window=4, skew=slow)):
            yield f"{one.cluster.name} {shown.window} {shown.precision}", header.header_of(request.make_workload(shown))
        yield f"{one.cluster.name}, settings", header.settings_of("deepep", "real", {"n_sm": 20}, one)
        work = request.make_workload(one)
        yield f"{one.cluster.name}, rows", (Job("deepep", {}, work).n_rows, Job("deepep", {}, work, (3, 5)).n_rows, digest_of(one.tokens)[:6])
    texts = {"a": ["x", "b: y", "memory: z"], "b": ["x", "y"], "c": ["x", "a b"]}
    yield "grouped", header.grouped(texts)
    yield "grouped, known", header.grouped(texts, ("x",))
    yield "grouped, one", header.grouped({"deepep": ["deepep drops rows", "other"]})


def late() -> Iterator[Row]:
    """Late and slow ranks."""
    for start, slow in itertools.product((None, "fixed:3", "normal:2.5", "rank=1:4,3:2"), (None, "normal:0.1", "normal:0.3", "rank=2:1.5,0:0.1")):
        made = skew.make_skew(start, slow, 4, 6)
        yield f"{start} {slow}", (*made.start_ps, *made.slow, skew.skew_line(made)) if made else ()
    wrong = ("fixed", "fixed:-1", "fixed:1000001", "fixed:1e6", "nromal:1", "rank=4:1", "rank=1", "rank=1:2,rank=1:3", "rank=x:1", "x.csv")
    for text in wrong:
        yield f"start {text}", (said(skew.make_skew, text, None, 4, 0),)
    for text in ("normal:0.31", "rank=0:0.09", "rank=0:100", "rank=0:100.5", "fixed:2"):
        yield f"slow {text}", (said(skew.make_skew, None, text, 4, 0),)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "late.csv"
        for lines in ("rank,start_us\n2,5\n0,1.5\n", "rank,us\n", "rank,start_us\n1\n", "rank,start_us\n9,1\n", ""):
            path.write_text(lines)
            yield f"file {lines!r}", (said(skew.make_skew, str(path), None, 4, 0).replace(folder, ""),)


def facts(given: dict[str, Any]) -> list[Any]:
    """Some of a request with arguments `given`."""
    made = asked(**given)
    return [made.tokens, made.routing, made.window, made.fabric, made.skew]


def requests() -> Iterator[Row]:
    """Arguments that become a request, or are refused."""
    wrong: tuple[dict[str, Any], ...] = (
        {"gpus": 0}, {"tokens": 0}, {"tokens": (1 << 40) + 1}, {"gpus": 33}, {"direction": "forward"}, {"fidelity": "flit"}, {"window": 8},
        {"window": 3, "fidelity": "packet"}, {"window": 40, "fidelity": "packet"}, {"window": 39, "fidelity": "packet"}, {"window": 0},
        {"window": 4, "cluster": "paper-gh200-nvl32-x2", "gpus": 64}, {"cluster": "hw-mi300x", "fidelity": "packet"}, {"tokens": None},
        {"options": {"fabric.acks": "x"}}, {"options": {"fabric.n_vcs": -2}}, {"options": {"fabric.n_vcs": -1}},
        {"options": {"fabric.stripe": "hash"}},
        {"options": {"fabric.al_entries": 64}}, {"options": {"fabric.al_entries": -1}, "fidelity": "packet"},
        {"options": {"fabric.nothing": 1},
        "fidelity": "packet"}, {"options": {"fabric.al_entries": 64}, "fidelity": "packet"}, {"start": "fixed:2"},
        {"routing": "deepseek-v2-lite-law"},
        {"routing": "a.npz"}, {"routing": "b.csv"}, {"routing": "trace:a.npz"},
    )  # fmt: skip
    for given in wrong:
        yield f"{given}", (said(facts, given),)
    works = ("all-reduce:64KiB", "sub-layer:llama-7b:L1", "all-gather-v:2,4,6,8")
    changes: tuple[dict[str, Any], ...] = ({}, {"cluster": "hw-dgx-h100"}, {"tokens": 3, "cluster": "hw-dgx-h100"}, {"gpus": 0})
    for work, more in itertools.product(works, changes):
        all_of: dict[str, Any] = DEFAULTS | {"cluster": "paper-gh200-nvl32", "gpus": 4, "workload": work} | more
        yield f"{work} {more}", (said(request.make_collective_request, all_of),)
    for point in (
        Point("deepep", "S-8", "paper-gh200-nvl32", "", 3, 4, 16, (("n_sm", 20), ("compute", False)), (("a.b", 2),), "bwd", "packet"),
        Point("dysharp", "a/b.toml", "c/d.toml", "uniform"),
        Point("nccl", "sub-layer:llama-7b:L1", "hw-dgx-h100", "", options=(("fabric.acks", "x"),)),
    ):  # fmt: skip
        yield point.label, (*point.command(), digest(str(point.workload)))


def chosen() -> Iterator[Row]:
    """Options of every system: help, values that are refused, GEMM variants, memory."""
    h100, paper = load_cluster("hw-dgx-h100"), load_cluster("paper-gh200-nvl32").with_gpus(4)
    for name, system in all_systems().items():
        for one in options.options_help(system):
            yield one.name, (str(one.value), one.values, digest(one.meaning), one.effect)
        usual = options.options_of(system, {})
        yield f"{name}, variants", (len(memory.gemm_variants(system, dataclasses.replace(asked(), cluster=on), usual)) for on in (h100, paper))
        yield f"{name}, shipped", (str(options._shipped(system, load_model(model), h100)) for model in ("deepseek-v3", "mixtral-8x7b"))
        fields = {f.name: f.default for f in dataclasses.fields(system.options)}
        changed = {key: not value for key, value in fields.items() if isinstance(value, bool)} | ({"form": "paper"} if "form" in fields else {})
        yield f"{name}, without effect", options.without_effect(system, options.options_of(system, changed), h100)
    for owner, option, value in (
        ("deepep", "n_sm", "21"), ("deepep", "n_sm", "0"), ("deepep", "n_sm", "x"), ("deepep", "n_sm", 24), ("deepep", "compute", "yes"),
        ("deepep", "form", "rea"),
        ("dysharp", "dispatch_window", -1), ("dysharp", "combine_window", "1.5"), ("dysharp", "combine_windw", 1), ("deepep", "compute", "False"),
    ):  # fmt: skip
        yield f"{owner}.{option}={value}", (said(options.options_of, get_system(owner), {option: value}),)
    two = {name: get_system(name) for name in ("deepep", "dysharp")}
    for given in ({"n_sm": 20}, {"deepep.n_sm": 20}, {"deepp.n_sm": 20}, {}):
        yield f"split {given}", (said(options.split_options, given, two),)
    yield "set", (said(options.parse_set, texts) for texts in (("a.b=c=d",), ("a",), ("=a",), ("a=1", "a=2")))
    yield "most", (memory.most_bytes(asked(tokens=tokens, gpus=gpus)) for tokens in (40, 700) for gpus in (4, 8))
    for direction, tokens in itertools.product(("fwd", "both"), (20, 32, 50)):
        one_of = asked(direction=direction, tokens=tokens, fidelity="packet" if tokens == 50 else "burst", routing="uniform")
        yield f"bytes {direction} {tokens}", (memory.estimate_bytes(two["deepep"], one_of, options.options_of(two["deepep"], {})),)


def studies() -> Iterator[Row]:
    """Draws of studies, and files that are refused."""
    for log, seed, n in (((), 0, 5), (("x", "k"), 3, 6)):
        draws = latin_hypercube(Draw("latin-hypercube", n, {"x": [2.0, 50.0], "k": [3, 40], "one": [0, 1]}, log, seed=seed))
        for at, values in enumerate(draws):
            yield f"draw {seed} {at}", values.values()
    table = '[points]\nsystems = ["deepep"]\nmodels = ["S-8"]\ngpus = 4\ntokens = [16, 24]\n'
    ranges = ("gpus = [2, 8]", "", "x = [8, 8]", "x = [0, 8]", "x = [1, 8]", "x = [1, 1e15]", "x = [1]", "x = [1, 2, 3]")
    drawn = [("tpe", 3, one, more) for one in ranges for more in ("", "log = 'x'")]
    drawn += [("tep", 3, ranges[0], ""), ("tpe", 0, ranges[0], ""), ("nsga2", 1, ranges[0], ""), ("tpe", 1, ranges[0], "seed = -1")]
    drawn += [("nsga2", 2, ranges[0], "minimize = ['time_us', 'bound_us']"), ("latin-hypercube", 2, ranges[0], "minimize = []")]
    lines = [f"[draw]\nmethod = '{method}'\nn = {n}\nrange = {{{one}}}\n{more}\n" for method, n, one, more in drawn]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "my.toml"
        for at, text in enumerate(["", *lines]):
            path.write_text(table + text)
            yield f"file {at}", (said(load_study, str(path)).replace(folder, ""),)
        path.write_text(table + '[points.grid]\n"cluster.link_GBps" = [450, 900]\n')
        study = load_study(str(path))
        yield "grid", (point.label for point in study.grid())
        yield "at", (point.label for point in study.at({"tokens": 12, "deepep.n_sm": 22, "cluster.link_GBps": 300}))
        path.write_text("x = 1\n")
        yield "no points", (said(load_study, str(path)).replace(folder, ""),)


CASES: Cases = {one.__name__: one for one in (windows, limits, headers, late, requests, chosen, studies)}
