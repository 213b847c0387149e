"""Generated inputs of the command line: arguments and files, most of them damaged. Equal seeds give equal inputs."""

import io
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

CANARY = "canary"
"""A file that hostile inputs try to make in the working folder."""
RUN = ("run", "ideal", "--gpus", "4", "--tokens", "4")
CONFIG = {
    "hidden_size": 64, "moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 4, "torch_dtype": "bfloat16",
}  # fmt: skip
WHOLE = {
    **CONFIG, "vocab_size": 100, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "model_type": "qwen3_moe",
    "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"] * 2, "shared_expert_intermediate_size": 16,
}  # fmt: skip
WHOLES = (
    {}, {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16, "layer_types": None},
    {"kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "first_k_dense_replace": 1},
)  # fmt: skip
MODEL = {"base": "S-8", "name": "mine", "topk": 2, "hidden": 1024, "routing": "uniform"}
CLUSTER = {"base": "hw-dgx-h100", "name": "mine", "link_GBps": 450.0, "n_gpus": 8, "link_latency_ns": 500.0, "fp8_TFLOPS": 1979.0}
MEASUREMENT = {
    "id": "a-1", "kind": "gemm_dense", "system": "vLLM linear", "hardware": "H100-SXM",
    "config_json": {"dtype": "bfloat16", "k": 4096, "kernel": "torch.nn.functional.linear", "m": 1024, "n": 4096, "timing": "cuda graph"},
    "metric": "latency", "value": "53.1", "unit": "us", "source": "test",
}  # fmt: skip
FIGURE = {"title": "mine", "source": "test", "points": {"systems": ["closed-form"], "models": ["S-8"], "seeds": [0, 1]}}
CHECK = {"name": "share", "metric": "redundant_share", "system": "closed-form", "paper": 0.5, "within": 0.5, "mark": "far", "mark_above": 0.1}
WORDS = (
    "", " ", "x", "0", "-1", "1e308", "1e-320", "nan", "inf", "true", "[/red]", "[bold]x[/bold]", "\x1b]0;pwn\x07", "\x9b31m", "\u202egnp", "a\nb",
    "a\n\n# heading\n\n[click](javascript:alert(1)) ![x](http://evil/x.png)", "<script>x</script>", "a|b", "x" * 4000, "é", "\u4e2d", "a\x00b",
    "../../etc/passwd", "/dev/null", "/proc/self/mem", f"__import__('os').system('touch {CANARY}')", f"$(touch {CANARY})", ":", "=", ",", "uniform",
)  # fmt: skip
NUMBERS = (0, 1, -1, 2, 3, 7, 255, 256, 1 << 16, (1 << 31) - 1, 1 << 31, 1 << 63, -(1 << 63), 1 << 64, 10**30, 10**310, 10**401)
FLOATS = (0.0, -0.0, 0.5, -1.5, 1e-9, 1e-320, 1e9, 1e15, 1e308, float("inf"), float("nan"))
OPTIONS = {
    "run": "gpus tokens layer routing placement direction seed fidelity window set model cluster",
    "emulate": "gpus tokens hidden expert-hidden experts topk inject order path seed dtype block",
    "network": "k n vcs buffer packet-flits pattern burst load speedup delays topology curve period warm-up seed",
    "routing": "gpus tokens seed model",
}
ASKED = {
    "trace": (
        ("trace", "ideal", "--gpus", "2", "--tokens", "2", "-o", "t.perfetto-trace"),
        "chakra parts from to only follow start slow set seed layer direction routing",
    ),
    "model": (("model", "mixtral-8x7b"), "sequence layout schedule precision recompute dispatcher fixed-gib gpu cluster"),
    "step": (
        ("step", "mixtral-8x7b", "--layout", "ep=8,pp=2,gpus=16", "--systems", "deepep"),
        "layout cluster schedule systems sequence precision recompute routing seed",
    ),
    "serve": (("serve", "mixtral-8x7b"), "cluster gpus isl osl engine precision kv slo users layouts ep-system"),
    "rtl": (("rtl", "tile-status"), "cluster out seed"),
    "report": (("report", "row.json", "-o", "r.html"), "title"),
    "query": (("query", "select 1 as x"), "folder csv"),
    "study": (("study", "f.toml"), "folder jobs plot"),
    "plan": (
        ("plan", "mixtral-8x7b", "--gpus", "32", "--try", "tp=1", "--try", "pp=1"),
        "cluster batch sequence precision spread imbalance try vary best check serve arguments rows",
    ),
    "compare": (("compare", "--systems", "ideal", "--gpus", "2", "--tokens", "2"), "systems forms baseline model layer placement start slow set"),
    "advise": (("advise", "S-8", "--systems", "deepep", "--gpus", "2", "--tokens", "2"), "cluster layer routing set phase libraries regime"),
    "merged": (("run", "ideal", "--gpus", "2", "--tokens", "2"), "workload start slow layer set routing"),
    "emulated": (("emulate", "ideal", "--gpus", "2", "--tokens", "2"), "workload block backward dump token placement set"),
    "capture": (("capture", "no-such-folder", "--text", "row.json", "-o", "t.npz"), " layers max-tokens sequence gpus"),
    "list": (("list", "options"), "json x"),
    "validate": (("validate", "--data", "row.json", "-j", "1"), "cluster groups page hold-out"),
}
"""Command -> its arguments, and the options that get hostile values."""
ROUTINGS = (
    "uniform", "normal:0.1", "powerlaw:1", "lognormal:0.65", "lognormal:0.65:group-limited", "trace:deepseek-v2-lite:layer=3",
    "counts:x.csv:model=a", "loads:gpt-oss-20b:layer=5",
)  # fmt: skip
Draw = random.Random


@dataclass(frozen=True, slots=True)
class Input:
    """One call of the command line: its arguments, and the files of its working folder."""

    family: str
    args: tuple[str, ...]
    files: dict[str, bytes] = field(default_factory=dict)


def inputs(count: int, seed: int) -> Iterator[Input]:
    """`count` inputs, all families in turn."""
    families = tuple(FAMILIES.items())
    for number in range(count):
        name, make = families[number % len(families)]
        args, files = make(Draw(f"{seed}/{number}"))
        yield Input(name, tuple(a.replace("\x00", "") for a in args), files)  # a shell passes no NUL


def hostile(draw: Draw) -> Any:
    """A value that a reader does not expect."""
    kind = draw.randrange(8)
    if kind < 3:
        return draw.choice(NUMBERS)
    if kind < 5:
        return draw.choice(WORDS)
    if kind == 5:
        return draw.choice(FLOATS)
    return draw.choice((None, True, False, [], {}, [[]], [1, "a", None], {"a": {"b": [1]}}, [0] * 2000, nested(draw.choice((50, 150)))))


def nested(depth: int) -> Any:
    """Lists inside each other."""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def changed(draw: Draw, value: Any) -> Any:
    """A copy of a tree with one place replaced, removed or added."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        copy = dict(value)
        key = draw.choice(list(copy))
        action = draw.random()
        if action < 0.1:
            del copy[key]
        elif action < 0.2:
            copy[draw.choice(WORDS)] = hostile(draw)
        else:
            copy[key] = changed(draw, copy[key])
        return copy
    if isinstance(value, list) and value and draw.random() < 0.7:
        at = draw.randrange(len(value))
        return [*value[:at], changed(draw, value[at]), *value[at + 1 :]]
    return hostile(draw)


def damaged(draw: Draw, data: bytes) -> bytes:
    """Bytes cut, changed, doubled or filled with others; or as they are."""
    at, action = draw.randrange(len(data) + 1), draw.randrange(7)
    if action == 0:
        return data[:at]
    if action == 1:
        return data[:at] + draw.randbytes(draw.choice((1, 4, 64))) + data[at + 1 :]
    if action == 2:
        return data[:at] + draw.choice(WORDS).encode() + data[at:]
    if action == 3:
        return draw.choice((b"", b"\xef\xbb\xbf", b"\xff\xfe", b"PK\x03\x04", b"\x80\x04", b"[" * 100_000, b"a." * 3000 + b"a=1")) + data[at:]
    return data


def toml(table: dict[str, Any], prefix: str = "") -> str:
    """TOML of a tree. Values that TOML lacks become what the JSON of them is, which may be malformed."""
    plain = [f"{json.dumps(key)} = {_toml_value(value)}" for key, value in table.items() if not isinstance(value, dict)]
    tables = [f"[{prefix}{json.dumps(key)}]\n{toml(value, f'{prefix}{json.dumps(key)}.')}" for key, value in table.items() if isinstance(value, dict)]
    return "\n".join([*plain, *tables]) + "\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml_value(v)}" for k, v in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


def _model_json(draw: Draw) -> tuple[list[str], dict[str, bytes]]:
    return [*RUN, "--model", "config.json"], {"config.json": damaged(draw, json.dumps(changed(draw, CONFIG)).encode())}


def _whole_json(draw: Draw) -> tuple[list[str], dict[str, bytes]]:
    config = changed(draw, {**WHOLE, **draw.choice(WHOLES)})
    return [draw.choice(("model", "model", "step", "serve")), "config.json"], {"config.json": damaged(draw, json.dumps(config).encode())}


def _model_toml(draw: Draw) -> tuple[list[str], dict[str, bytes]]:
    return [*RUN, "--model", "m.toml"], {"m.toml": damaged(draw, toml(changed_table(draw, MODEL)).encode())}


def changed_table(draw: Draw, table: dict[str, Any]) -> dict[str, Any]:
    """`changed`, and always a table."""
    result = changed(draw, table)
    return result if isinstance(result, dict) else table


def _cluster(draw: Draw) -> tuple[list[str], dict[str, bytes]]:
    table = changed_table(draw, CLUSTER)
    if draw.random() < 0.3:
        table["constants"] = {draw.choice(("h100.host_call_us", "hybrid.rank_us", "x")): hostile(draw)}
    args = ["run", draw.choice(("ideal", "deepep")), "--gpus", "4", "--tokens", "4", "--model", "S-8", "--cluster", "c.toml"]
    return args, {"c.toml": damaged(draw, toml(table).encode())}


def _placement(draw: Draw) -> tuple[list[str], dict[str, bytes]]:
    good = [[expert for expert in range(64) if expert % 4 == gpu] for gpu in range(4)]
    document = changed(draw, good if draw.random() < 0.5 else {"gpus": good})
    return [*RUN, "--placement", "p.json"], {"p.json": damaged(draw, json.dumps(document).encode())}


def _npz(draw: Draw) -> bytes:
    arrays: dict[str, Any] = {
        "expert": np.array([[[0, 1], [2, 3], [1, 3]]], draw.choice((np.int16, np.int64, np.uint8))),
        "layer_id": np.array([3]), "seq_len": np.array([2, 1]), "meta": np.array(json.dumps({"E": 4, "origin": draw.choice(WORDS)})),
    }  # fmt: skip
    if draw.random() < 0.7:
        name = draw.choice((*arrays, "weight", "token_rank", "topk", "num_experts"))
        arrays[name] = draw.choice(
            (np.array(draw.choice(WORDS)), np.array([draw.choice(NUMBERS[:10])]), np.zeros((0, 2)), np.full((1, 3, 2), np.nan), np.array([["a"]]),
             np.array([{}], dtype=object), np.zeros((1, draw.choice((3, 1 << 20)), 2), np.int8), np.array("[" * 5000))
        )  # fmt: skip
    file = io.BytesIO()
    draw.choice((np.savez, np.savez_compressed))(file, **arrays)  # an object array is a pickle, which nobody may load
    return file.getvalue()


def _trace(draw: Draw) -> tuple[list[str], dict[str, bytes]]:
    name = draw.choice(("t.npz", "[red]t.npz", "t\x1b[31m.npz"))
    command = draw.choice((["routing", name], ["routing", name, "--json"], [*RUN, "--model", "c.json", "--routing", f"trace:{name}:layer=3"]))
    config = json.dumps(CONFIG | {"num_experts": 4}).encode()
    return command, {name: damaged(draw, _npz(draw)), "c.json": config}


def _counts(draw: Draw) -> tuple[list[str], dict[str, bytes]]:
    model = draw.choice(WORDS) if draw.random() < 0.2 else "m"
    rows = [["model", "layer", "expert", "count"], *([model, "0", str(expert), str(expert + 1)] for expert in range(8))]
    if draw.random() < 0.6:
        rows[draw.randrange(len(rows))][draw.randrange(4)] = str(hostile(draw) if draw.random() < 0.5 else draw.choice(WORDS))[:5000]
    text = "\n".join(",".join(f'"{cell}"' if set(cell) & set(',"\n') else cell for cell in row) for row in rows)
    return ["routing", "x.csv", *draw.choice(([], ["--json"]))], {"x.csv": damaged(draw, text.encode())}


def _import(draw: Draw) -> tuple[list[str], dict[str, bytes]]:
    ids = [[[0, 3], [2, 1]], [[1, 2], [0, 3]]]
    documents: tuple[Any, ...] = (
        {"routed_experts": ids}, {"choices": [{"routed_experts": ids}]}, {"logical_count": [[[4, 5, 6, 7]]]}, {"nvext": {"routed_experts": ids}},
        {"meta_info": {"routed_experts": ids}},
    )  # fmt: skip
    if draw.random() < 0.5:
        name, data = draw.choice(("d.json", "d.jsonl")), json.dumps(changed(draw, draw.choice(documents))).encode()
    else:
        file = io.BytesIO()
        names = draw.choice((("topk_idx", "topk_weights"), ("routed_experts",), ("logical_count",), ("expert_load",)))
        content = [draw.choice((ids, ids[0], [[0.5, 0.5]], [draw.choice(NUMBERS[:10])], [draw.choice(WORDS)])) for _ in names]
        kind = None if draw.random() < 0.8 else object  # an object array is a pickle
        arrays: dict[str, Any] = {key: np.array(value, dtype=kind) for key, value in zip(names, content, strict=True)}
        np.savez(file, **arrays)
        name, data = "d.npz", file.getvalue()
    hints = [word for flag in ("--experts", "--topk") if draw.random() < 0.7 for word in (flag, str(draw.choice((4, 2, *NUMBERS))))]
    form = draw.choice(("auto", "auto", "vllm", "sglang", "sglang-recorder", "dynamo", "eplb", "megatron", "deepep", "counts"))
    return ["routing", "import", name, "-o", "out.npz", "--format", form, *hints], {name: damaged(draw, data)}


def _measurements(draw: Draw) -> tuple[list[str], dict[str, bytes]]:
    rows = []
    for number in range(2):
        row = {**MEASUREMENT, "id": f"a-{number}"}
        if draw.random() < 0.8:
            key = draw.choice(list(row))
            row[key] = changed(draw, row[key]) if key == "config_json" else draw.choice(WORDS)
        cells = [json.dumps(v, default=str) if isinstance(v, dict | list | int | None) else str(v) for v in row.values()]
        rows.append(",".join('"' + cell.replace('"', '""') + '"' for cell in cells))
    data = damaged(draw, "\n".join([",".join(MEASUREMENT), *rows]).encode())
    args = ["validate", "--data", "m.csv", "-j", "1", *draw.choice(([], ["--groups"], ["--json"], ["--groups", "--page", "page.md"]))]
    if draw.random() < 0.2:
        args = ["calibrate", "m.csv", "-o", draw.choice(("out.toml", "x.txt", "no/out.toml", "x" * 300 + ".toml"))]
    return args, {"m.csv": data}


def _constants(draw: Draw) -> tuple[list[str], dict[str, bytes]]:
    from dysharp.specs.fitted import FILE

    cells = ['"' + (json.dumps(v) if isinstance(v, dict) else str(v)).replace('"', '""') + '"' for v in MEASUREMENT.values()]
    text = FILE.read_text(encoding="utf-8")
    lines = text.split("\n")
    at = draw.choice([i for i, line in enumerate(lines) if line.startswith(("value", "low", "high", "unit"))])
    lines[at] = f"{lines[at].split('=')[0]}= {_toml_value(hostile(draw))}"
    files = {"m.csv": "\n".join([",".join(MEASUREMENT), ",".join(cells)]).encode(), "k.toml": damaged(draw, "\n".join(lines).encode())}
    return ["validate", "--data", "m.csv", "-j", "1", "--constants", "k.toml"], files


def _figure(draw: Draw) -> tuple[list[str], dict[str, bytes]]:
    table = changed_table(draw, FIGURE | ({"check": [CHECK]} if draw.random() < 0.5 else {}))
    if draw.random() < 0.1 and isinstance(table.get("points"), dict):
        table["points"] = dict(table["points"]) | {"seeds": list(range(2000)), "tokens": list(range(1, 2000))}
    args = draw.choice((["sweep", "f.toml", "--store", "s"], ["reproduce", "f.toml", "--store", "s", "--report", "r.md"]))
    if args[0] == "sweep" and draw.random() < 0.4:
        args += ["--out", draw.choice(("o.jsonl", "", ".", "no/o", "x" * 300, "/dev/null"))]
    return args, {"f.toml": damaged(draw, toml(table).encode())}


def _options(draw: Draw) -> tuple[list[str], dict[str, bytes]]:
    command = draw.choice(list(OPTIONS))
    args = {
        "run": [*RUN],
        "emulate": ["emulate", draw.choice(("deepep", "dysharp")), "--gpus", "2", "--tokens", "2"],
        "network": ["network", "--k", "2", "--load", "0.1", "--period", "50", "--warm-up", "1"],
        "routing": ["routing", draw.choice(ROUTINGS), "--model", "S-8", "--gpus", "4", "--tokens", "4"],
    }[command]
    for _ in range(draw.choice((1, 1, 2))):
        number, setting = str(draw.choice((*NUMBERS, *FLOATS))), f"deepep.n_sm={hostile(draw)}"
        args += [f"--{draw.choice(OPTIONS[command].split())}", draw.choice((number, number, draw.choice(WORDS), draw.choice(ROUTINGS), setting))]
    return args, {}


def _asked(draw: Draw) -> tuple[list[str], dict[str, bytes]]:
    """A command of `ASKED` with one or two hostile options, or a hostile first word. Its files are damaged."""
    base, options = ASKED[draw.choice(list(ASKED))]
    hurt = draw.choice((*WORDS, str(draw.choice((*NUMBERS, *FLOATS)))))
    args = [base[0], hurt] if draw.random() < 0.15 else [*base]
    for _ in range(draw.choice((1, 1, 2))):
        number = str(draw.choice((*NUMBERS, *FLOATS)))
        args += [f"--{draw.choice(options.split())}", draw.choice((number, draw.choice(WORDS), "pp=4,vpp=2,ep=8,gpus=64", f"tp={number},pp=2"))]
    row = changed(draw, {"system": "ideal", "gpus": 4, "time_us": 1.5, "phases_us": {"gemm1": {"start": 0.0, "end": 1.0, "busy": 1.0}}})
    study = changed_table(draw, {"systems": ["ideal"], "models": ["S-8"], "gpus": [2], "tokens": [2], "draw": {"n": draw.choice(NUMBERS)}})
    return args, {"row.json": damaged(draw, json.dumps(row).encode()), "f.toml": damaged(draw, toml(study).encode())}


def _words(draw: Draw) -> tuple[list[str], dict[str, bytes]]:
    commands = ("run", "compare", "advise", "list", "routing", "emulate", "network", "sweep", "reproduce", "calibrate", "capture", "plan", "")
    return [draw.choice(commands), *(draw.choice((*WORDS, "--json", "-j", "--store")) for _ in range(draw.randrange(1, 4)))], {}


FAMILIES: dict[str, Callable[[Draw], tuple[list[str], dict[str, bytes]]]] = {
    "config.json": _model_json,
    "model TOML": _model_toml,
    "cluster TOML": _cluster,
    "placement": _placement,
    "trace": _trace,
    "counts": _counts,
    "import": _import,
    "measurements": _measurements,
    "constants": _constants,
    "figure": _figure,
    "options": _options,
    "asked": _asked,
    "words": _words,
    "whole config.json": _whole_json,
}
