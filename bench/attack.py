"""Malformed inputs for every kind of file and every option: `python bench/attack.py --count 3000 --seed 1 [--jobs 2] [--only WORD] [--show]`.

A valid file of each kind is damaged: its structure (keys and names twice, other types, huge or missing numbers, other depths), its bytes (cut, BOM,
UTF-16, control characters), or the file itself (links, pipes, devices, folders). Options are those of click's tree of commands; their values are
damaged words of the examples. Each input runs in a fork with 6 GiB and a limit of time. A finding is one of `KINDS`; exit code 1 if there is one.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import functools
import io
import itertools
import json
import os
import random
import re
import resource
import shlex
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import click
import numpy as np

from dysharp.cli import main
from dysharp.cli.app import cli
from dysharp.cli.texts.examples import EXAMPLES
from dysharp.figures.figure import load_figure  # noqa: F401  loads what a fork would load again
from dysharp.measured.serving.setting import ServingRow
from dysharp.measured.training.setting import TrainingRow
from dysharp.specs.fitted import FILE as CONSTANTS

KINDS = ("traceback", "hang", "exit code", "no message", "control character", "NaN", "left file", "lost file", "memory")
MEMORY, CPU_S, WALL_S, MOST_LINE = 6 << 30, 20, 300, 3000
RAISED = 99
"""Exit code of a fork that ended with an exception."""
SMALL = ("ideal", "--gpus", "2", "--tokens", "2", "--model", "S-8")
STEP = ("step", "mixtral-8x7b", "--layout", "ep=8,gpus=64,m=4", "--systems", "deepep", "--quick")
PROFILE = [
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "args": {"External id": 1, "Input Dims": [[64, 64]] * 2, "Input type": ["float"] * 2}},
    *({"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": 9.5, "args": {"External id": 1, "correlation": 1, "stream": 7}}
      for ts, name in ((5, "nvjet_hsh"), (20, "ncclDevKernel_SendRecv"))),
]  # fmt: skip
BASES: dict[str, tuple[str, ...]] = {
    "run": ("run", *SMALL),
    "compare": ("compare", "--systems", *SMALL),
    "trace": ("trace", *SMALL, "-o", "o.perfetto-trace"),
    "emulate": ("emulate", "ideal", "--gpus", "2", "--tokens", "2"),
    "advise": ("advise", "S-8", "--systems", "deepep", *SMALL[1:5]),
    "network": ("network", "--k", "2", "--load", "0.1", "--period", "50", "--warm-up", "1"),
    "explain": ("explain", "profile.json", "--cluster", "hw-dgx-h100"),
    "list": ("list", "models"),
    "model": ("model", "mixtral-8x7b", "--layout", "ep=8,gpus=64"),
    "step": STEP,
    "serve": ("serve", "mixtral-8x7b", "--gpus", "4"),
    "plan": ("plan", "mixtral-8x7b", "--gpus", "32", "--quick"),
    "rtl": ("rtl", "tile-status"),
    "query": ("query", "select 1 as x", "--folder", "s"),
    "report": ("report", "rows.json", "-o", "o.html"),
    "study": ("study", "study.toml", "--folder", "s"),
    "sweep": ("sweep", "sweep.toml", "--store", "s"),
    "reproduce": ("reproduce", "figure.toml", "--store", "s"),
    "calibrate": ("calibrate", "m.csv", "-o", "o.toml"),
    "measure": ("measure", "--only", "kernels", "--minutes", "0", "-o", "o.csv"),
    "validate": ("validate", "--data", "m.csv", "-j", "1"),
    "capture": ("capture", "folder", "--text", "rows.json", "-o", "o.npz"),
    "routing": ("routing", "uniform", "--model", "S-8", "--gpus", "2", "--tokens", "4"),
    "routing lint": ("routing", "lint", "t.npz"),
    "routing import": ("routing", "import", "vllm.json", "--experts", "8", "-o", "o.npz"),
    "routing describe": ("routing", "describe", "t.npz"),
    "routing placement": ("routing", "placement", "eplb.npz", "--gpus", "2", "-o", "o.json"),
}
"""Command -> a call that is quick. Files are those of `seeds`."""
SLOW = {"--area", "--check", "--prove", "--faults", "--trace", "--testbench", "--tornado", "--all", "--refit", "--hold-out", "--tuned", "--what-if"}
"""Options whose work takes minutes as it should; they are not drawn."""
CONFIG = {
    "hidden_size": 64,
    "moe_intermediate_size": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 4,
    "torch_dtype": "bfloat16",
    "vocab_size": 100,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "model_type": "qwen3_moe",
    "max_position_embeddings": 4096,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
MLA = {"kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "first_k_dense_replace": 1}
IDS = np.array([[[0, 3], [2, 1]], [[1, 2], [0, 3]]], np.int32)
MAP = {
    "moe_layer_count": 1,
    "layer_list": [{"layer_id": 0, "device_count": 2, "device_list": [{"device_id": d, "device_expert": [d]} for d in (0, 1)]}],
}
SWEEP = '[points]\nsystems = ["closed-form"]\nmodels = ["S-8"]\nseeds = [0, 1]\ngpus = [8]\n'
CHECK = '[[check]]\nname = "share"\nmetric = "redundant_share"\nsystem = "closed-form"\npaper = 0.5\nwithin = 0.5\n'
WHOLE = (
    'base = "S-8"\nname = "mine"\ntopk = 2\nhidden = 1024\nrouting = "uniform"\n[whole]\nvocab = 100\ncontext = 64\n[whole.attention]\nkind = "gqa"\n'
    "heads = 8\nkv_heads = 4\nhead_dim = 128\n"
)
DENSE = 'name = "d"\nsource = "x"\nhidden = 64\n[whole]\nvocab = 9\ndense_layers = 2\ndense_hidden = 128\n' + WHOLE[WHOLE.index("[whole.att") :]
CLUSTER = 'base = "hw-dgx-h100-x2"\nname = "mine"\nlink_GBps = 450.0\nn_gpus = 8\n[constants]\n"hybrid.rank_us" = 0.1\n[scale_out]\nnic_GBps = 50.0\n'
ARGS = "--expert-model-parallel-size 8 --num-gpus 64 --micro-batch-size 1 --global-batch-size 64 --seq-length 4096 --recompute-modules moe_act mlp\n"
YAML = "model:\n  expert_model_parallel_size: 8\n  recompute_modules:\n  - moe_act\n  - mlp\ntrain:\n  num_gpus: 64  # all\n  list: [a, b]\n"
PRESETS = (
    "A = P(num_gpus=64, expert_model_parallel_size=8)\nB = replace(A, x=(1, [2]))\n\ndef f(cfg):\n"
    "    cfg.model.expert_model_parallel_size = 8\n    cfg.g = T(num_gpus=64, y={'a': 1})\n"
)
REAL = SWEEP.replace("closed-form", "ideal").replace("8]", "2]") + "tokens = [2]\n"
DRAW = REAL.replace("tokens = [2]\n", "") + '[draw]\nmethod = "latin-hypercube"\nn = 2\nseed = 1\n[draw.range]\ntokens = [2, 8]\n'
GEMM = {"dtype": "bfloat16", "k": 4096, "kernel": "torch.nn.functional.linear", "m": 1024, "n": 4096, "timing": "cuda graph"}


def _row() -> str:
    """What `run --json` prints, in one line."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
        main(["run", *SMALL, "--json"])
    return json.dumps(json.loads(out.getvalue()))


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _csv(columns: Sequence[str], *rows: Sequence[Any]) -> str:
    cells = ((json.dumps(cell) if isinstance(cell, dict) else str(cell) for cell in row) for row in (columns, *rows))
    return "".join(",".join('"' + cell.replace('"', '""') + '"' if set(cell) & set(',"') else cell for cell in row) + "\n" for row in cells)


def _npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _runs(kind: Any, **cells: Any) -> str:
    return _csv(kind.columns.all, [cells.get(name, "") for name in kind.columns.all])


TRACE = {
    "expert": np.array([[[0, 1], [2, 3], [1, 3]]], np.int16),
    "layer_id": np.array([3]),
    "seq_len": np.array([2, 1]),
    "meta": np.array('{"E": 64, "k": 2}'),
}
MEASURED = ["id", "kind", "system", "hardware", "config_json", "metric", "value", "unit", "source"]
TRAINED = {"id": "a", "model": "Llama3-8B", "hardware": "H100", "gpus": 8, "precision": "BF16", "gbs": 64, "mbs": 1, "seq": 8192, "tp": 1, "pp": 1,
           "ep": 1, "dp": 8, "ga": 8, "tok_s_gpu": 10000}  # fmt: skip
SERVED = {"id": "a", "measured": "2026-03-01", "model": "Qwen/Qwen3-32B", "hardware": "h200_sxm", "engine": "vllm", "mode": "aggregated", "isl": 1024,
          "osl": 64, "concurrency": 4, "tp": 1, "gpus": 1, "tpot_ms": 8, "ttft_ms": 100}  # fmt: skip
RUN = ("run", *SMALL)


@functools.cache
def seeds() -> dict[str, tuple[str | bytes, tuple[tuple[str, ...], ...]]]:
    """Kind of file -> its content, and calls that read it."""
    row = _row()
    return {
        "config.json": (
            json.dumps(CONFIG),
            (
                ("run", *SMALL[:5], "--model", "config.json", "--placement", "contiguous"),
                ("model", "config.json"),
                ("serve", "config.json", "--gpus", "2"),
            ),
        ),
        "mla.json": (json.dumps(CONFIG | MLA), (("model", "mla.json"), ("plan", "mla.json", "--gpus", "2", "--quick"))),
        "whole.toml": (WHOLE, (("run", *SMALL[:5], "--model", "whole.toml"), ("model", "whole.toml"), ("step", "whole.toml", *STEP[2:]))),
        "dense.toml": (DENSE, (("model", "dense.toml"), ("serve", "dense.toml", "--gpus", "1"))),
        "c.toml": (
            CLUSTER,
            (
                (*RUN, "--cluster", "c.toml"),
                ("serve", "mixtral-8x7b", "--gpus", "8", "--cluster", "c.toml"),
                ("rtl", "tile-status", "--cluster", "c.toml"),
            ),
        ),
        "t.npz": (
            _npz(**TRACE),
            (("routing", "t.npz"), ("routing", "lint", "t.npz"), ("run", *SMALL[:5], "--model", "S-2", "--routing", "trace:t.npz")),
        ),
        "counts.csv": (
            _csv(("model", "layer", "expert", "count"), *(("m", 0, e, e + 1) for e in range(64))),
            (("routing", "counts.csv"), (*RUN, "--routing", "counts:counts.csv")),
        ),
        "place.json": (json.dumps({"gpus": [[*range(32)], [*range(32, 64)]]}), ((*RUN, "--placement", "place.json"),)),
        "place.toml": (f"gpus = [{[*range(32)]}, {[*range(32, 64)]}]\n", ((*RUN, "--placement", "place.toml"),)),
        "start.csv": ("rank,start_us\n0,1.5\n1,2\n", ((*RUN, "--start", "start.csv"),)),
        "slow.csv": ("rank,factor\n0,1.5\n1,2\n", ((*RUN, "--slow", "slow.csv"),)),
        "sweep.toml": (SWEEP, (BASES["sweep"],)),
        "study.toml": (REAL, (BASES["study"],)),
        "draw.toml": (DRAW, (("study", "draw.toml", "--folder", "s"),)),
        "figure.toml": (f'title = "mine"\nsource = "test"\n{SWEEP}{CHECK}', (BASES["reproduce"], ("sweep", "figure.toml", "--store", "s"))),
        "m.csv": (
            _csv(MEASURED, ("a", "gemm_dense", "vLLM linear", "H100-SXM", GEMM, "latency", 53.1, "us", "x")),
            (BASES["calibrate"], BASES["validate"]),
        ),
        "k.toml": (CONSTANTS.read_text(), (("validate", "--data", "m.csv", "-j", "1", "--constants", "k.toml"),)),
        "training.csv": (_runs(TrainingRow, **TRAINED), (("validate", "--data", "training.csv"),)),
        "serving.csv": (_runs(ServingRow, **SERVED), (("validate", "--data", "serving.csv"),)),
        "a.sh": (ARGS, ((*STEP[:2], *STEP[4:], "--megatron-args", "a.sh"),)),
        "a.yaml": (YAML, ((*STEP[:2], *STEP[4:], "--megatron-args", "a.yaml"),)),
        "a.json": ('{"model": {"expert_model_parallel_size": 8}, "num_gpus": 64}', ((*STEP[:2], *STEP[4:], "--megatron-args", "a.json"),)),
        "a.toml": ("num_gpus = 64\n[model]\nexpert_model_parallel_size = 8\n", ((*STEP[:2], *STEP[4:], "--megatron-args", "a.toml"),)),
        "r.py": (PRESETS, tuple((*STEP[:2], *STEP[4:], "--megatron-args", f"r.py:{name}") for name in ("f", "B", "A"))),
        "profile.json": (json.dumps({"deviceProperties": [{"name": "NVIDIA H100"}], "traceEvents": PROFILE}), (BASES["explain"],)),
        "rows.json": (f"[{row}, {row}]", (BASES["report"],)),
        "row.json": (row, (("report", "row.json", "-o", "o.html"),)),
        "rows.jsonl": (f'{{"point": {{}}, "row": {row}}}\n{row}\n', (("report", "rows.jsonl", "-o", "o.html"),)),
        **{
            name: (json.dumps(value), (("routing", "import", name, "--experts", "8", "--topk", "2", "--n-layers", "2", "-o", "o.npz"),))
            for name, value in {
                "vllm.json": {"choices": [{"routed_experts": _base64(_npy(IDS))}]},
                "sglang.jsonl": {"meta_info": {"routed_experts": _base64(IDS.tobytes())}},
                "dynamo.json": {"nvext": {"routed_experts": {"data": _base64(IDS.tobytes()), "shape": [2, 2, 2], "dtype": "int32", "start": 0}}},
            }.items()
        },
        **{
            name: (data, (("routing", "import", name, "--experts", "8", "--topk", "2", "-o", "o.npz"),))
            for name, data in {
                "v.npz": _npz(routed_experts=IDS),
                "deepep.npz": _npz(topk_idx=IDS[0], topk_weights=np.ones((2, 2))),
                "load.npz": _npz(expert_load=np.array([[4, 5, 6, 7, 1, 1, 2, 3]])),
                "v.npy": _npy(IDS),
            }.items()
        },
        "eplb.npz": (_npz(phy2log=np.array([[0, 1, 2, 1]])), (BASES["routing placement"],)),
        "map.json": (json.dumps(MAP), (("routing", "placement", "map.json", "-o", "o.json"),)),
        "s/points.jsonl": (
            '{"point": {"system": "ideal"}, "row": {"time_us": 1.0}, "key": "00"}\n',
            (("query", "select * from points", "--folder", "s"), BASES["study"]),
        ),
        "cells.lib": (
            "library (x) { cell (NAND2) { area : 1.0; pin (A) { direction : input; } } }\n",
            (("rtl", "tile-status", "--liberty", "cells.lib"),),
        ),
    }


WORDS = (
    "",
    " ",
    "x",
    "0",
    "-1",
    "1.5",
    "1e308",
    "1e-320",
    "nan",
    "-inf",
    "true",
    "null",
    "[/red]",
    "\x1b]0;pwn\x07",
    "\x9b31m",
    "\u202egnp",
    "a\nb",
    "\ufeff",
    "x" * 5000,
    "é",
    "\u4e2d",
    "\ud800",
    "a\x00b",
    "../../etc/passwd",
    "/dev/null",
    "/dev/zero",
    "/proc/kmsg",
    ".",
    "..",
    "/",
    "no/such",
    "~",
    "-",
    "--",
    ":",
    "=",
    ",",
    ",,,",
    "a=b=c",
    "'",
    '"',
    "%s",
    "{}",
    "${HOME}",
    "9" * 400,
    "1_000",
    "0x10",
    "١٢",
    "1e400",
    "18446744073709551616",
    "-9223372036854775809",
    "0.1",
)
VALUES = (
    None,
    True,
    False,
    [],
    {},
    [[]],
    {"a": {"b": 1}},
    0,
    -1,
    1.5,
    -0.0,
    1e308,
    1 << 63,
    10**30,
    10**310,
    float("nan"),
    float("inf"),
    "",
    "x",
    "\x1b[31m",
    [0] * 3000,
)
Draw = random.Random


@dataclass(frozen=True, slots=True)
class Input:
    """One call: arguments, the files of its folder, and what stands in the place of one of them ("": its bytes)."""

    family: str
    args: tuple[str, ...]
    files: dict[str, bytes]
    special: str = ""


def inputs(count: int, seed: int) -> Iterator[Input]:
    """`count` inputs: files of every kind and options of every command in turn. Equal seeds give equal inputs."""
    options = _options()
    whole = {name: data if isinstance(data, bytes) else data.encode() for name, (data, _) in seeds().items()}
    for number in range(count):
        draw = Draw(f"{seed}/{number}")
        if number % 5 < 3:
            name = [*seeds()][(number // 5 * 3 + number % 5) % len(seeds())]
            args, special = draw.choice(seeds()[name][1]), draw.choice(SPECIAL) if draw.random() < 0.06 else ""
            files = whole | {name: whole[name] if special else _damaged(draw, name, whole[name])}
            yield Input(f"file {name}", (*args, *(["--json"] if draw.random() < 0.2 else [])), files, special and f"{special} {name}")
        else:
            command = [*BASES][(number // 5 * 2 + number % 5 - 3) % len(BASES)]
            args = [*BASES[command]]
            for name, flag, _ in draw.choices(options[command], k=draw.choice((1, 1, 1, 2, 3))):
                args += [name] if flag else [name, _word(draw, name)]
            if draw.random() < 0.1:
                args[draw.randrange(1, len(args))] = _word(draw, args[-1])
            yield Input(f"option {command}", tuple(arg.replace("\x00", "") for arg in args), whole)


def _options() -> dict[str, list[tuple[str, bool, str]]]:
    """Options of every command, from click's tree: (name, whether it is a flag, command)."""
    found: dict[str, list[tuple[str, bool, str]]] = {}

    def walk(command: click.Command, path: str) -> None:
        every = [(p.opts[-1], bool(p.is_flag), path) for p in command.params if isinstance(p, click.Option) and not {"--help", *SLOW} & {*p.opts}]
        found[path] = every or [("--json", True, path)]
        for name, inner in (command.commands if isinstance(command, click.Group) else {}).items():
            walk(inner, f"{path} {name}".strip())

    walk(cli, "")
    assert {*BASES} | {""} == {*found}, {*BASES} ^ {*found}
    return found


def _examples() -> dict[str, list[str]]:
    """Values of options in the examples of the command line."""
    found: dict[str, list[str]] = {}
    for line in (line for lines in EXAMPLES.values() for line in lines):
        words = shlex.split(line)
        for name, value in itertools.pairwise(words):
            if name.startswith("-") and not value.startswith("-"):
                found.setdefault(name, []).append(value)
    return found


TYPED = _examples()


def _word(draw: Draw, option: str) -> str:
    """A value of an option: hostile, the name of a file, or a damaged value of the examples."""
    kind = draw.randrange(4)
    if kind == 0 or (kind > 1 and option not in TYPED):
        return draw.choice(WORDS).encode("utf-8", "backslashreplace").decode()
    return draw.choice([*seeds()]) if kind == 1 else _text(draw, draw.choice(TYPED[option]))


def _text(draw: Draw, text: str) -> str:
    """Text with one number, word, character or line changed, taken away or doubled."""
    parts = re.split(r"(-?\d+(?:\.\d+)?|\w+|\n)", text)
    at = draw.randrange(len(parts))
    action = draw.randrange(7)
    if action == 0:
        parts[at] = ""
    elif action == 1:
        parts[at] *= draw.choice((2, 3, 3000))
    elif action == 2:
        parts[at] = parts[at][:-1] + draw.choice("sxz_0\x1b\u202e\t") if parts[at] else draw.choice("=,:{}[]\"'\\#")
    elif action == 3:
        other = draw.randrange(len(parts))
        parts[at], parts[other] = parts[other], parts[at]
    elif action == 4:
        lines = text.split("\n")
        lines.insert(draw.randrange(len(lines) + 1), draw.choice(lines))
        return "\n".join(lines)
    else:
        numbers = [i for i, part in enumerate(parts) if re.fullmatch(r"-?\d+(?:\.\d+)?", part)]
        at = draw.choice(numbers or [at])
        parts[at] = draw.choice(WORDS)
    return "".join(parts)


def _tree(draw: Draw, value: Any) -> Any:
    """A copy of a JSON value with one place of another type, renamed, removed, nested or doubled (`Twice`)."""
    if isinstance(value, dict) and value and draw.random() < 0.85:
        copy, key, action = Twice(value), draw.choice([*value]), draw.randrange(6)
        if action == 0:
            del copy[key]
        elif action == 1:
            copy[draw.choice((key + "z", key[:-1], key.upper(), *WORDS))] = copy.pop(key)
        elif action == 2:
            copy.again = (key, draw.choice((value[key], *VALUES)))
        else:
            copy[key] = _tree(draw, value[key])
        return copy
    if isinstance(value, list) and value and draw.random() < 0.7:
        at = draw.randrange(len(value))
        return draw.choice(([*value[:at], _tree(draw, value[at]), *value[at + 1 :]], value * 2, value[:at], [value]))
    nested: Any = 1
    for _ in range(draw.choice((50, 150))):
        nested = draw.choice(([nested], {"a": nested}))
    return draw.choice((*VALUES, *VALUES, nested, [value]))


class Twice(dict[str, Any]):
    """An object of JSON whose key `again` stands twice."""

    again: tuple[str, Any] | None = None


def _json(value: Any) -> str:
    if isinstance(value, dict):
        more = [value.again] if isinstance(value, Twice) and value.again else []
        return "{" + ", ".join(f"{json.dumps(key)}: {_json(item)}" for key, item in (*value.items(), *more)) + "}"
    return "[" + ", ".join(map(_json, value)) + "]" if isinstance(value, list) else json.dumps(value)


def _arrays(draw: Draw, data: bytes) -> bytes:
    """An .npz with one array of another type, shape, name or number."""
    with np.load(io.BytesIO(data)) as file:
        arrays: dict[str, Any] = dict(file)
    name = draw.choice([*arrays])
    old = arrays[name]
    number = np.array(draw.choice((-1, 1 << 31, 1 << 62, 0, 7))).astype(old.dtype if old.dtype.kind in "iuf" else np.int64)
    changed: Any = draw.choice(
        (
            old[..., None],
            old[:0] if old.ndim else old,
            old.astype(draw.choice(("f8", "c16", "?", "u8", "S4", "O", "U3")), copy=False) if old.dtype.kind in "iuf" else old,
            np.full_like(old, number, dtype=number.dtype),
            np.zeros((1, 1 << 20, 2), np.int8),
            np.array("[" * 5000),
            np.array(['{"E": 8, "E": 4}']),
            np.zeros(old.shape, [("a", "i4")]),
            np.zeros(old.shape, "M8[s]"),
            np.full(old.shape, np.nan),
            np.asfortranarray(old),
            old.view(np.ndarray).byteswap(),
        )
    )
    arrays = {key: value for key, value in arrays.items() if key != name or draw.random() < 0.9} | (
        {} if draw.random() < 0.1 else {draw.choice((name, name, "x")): changed}
    )
    out = io.BytesIO()
    np.savez(out, **arrays) if draw.random() < 0.7 else np.savez_compressed(out, **arrays)
    if draw.random() < 0.2:
        with zipfile.ZipFile(out, "a") as archive, warnings.catch_warnings(action="ignore"):
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), _npy(old))
    return out.getvalue()


def _damaged(draw: Draw, name: str, data: bytes) -> bytes:
    """The content of a file, damaged in its structure, its text or its bytes."""
    kind = draw.random()
    if kind < 0.7 and name.endswith((".json", ".jsonl")):
        with contextlib.suppress(ValueError):
            return _json(_tree(draw, json.loads(data))).encode("utf-8", "surrogatepass")
    if kind < 0.7 and name.endswith(".npz"):
        return _arrays(draw, data)
    if kind < 0.85 and not name.endswith((".npz", ".npy")):
        text = data.decode()
        for _ in range(draw.choice((1, 1, 2))):
            text = _text(draw, text)
        return text.encode("utf-8", "surrogatepass")
    at = draw.randrange(len(data))
    return draw.choice(
        (
            data[:at],
            data[at:],
            b"",
            b"\n",
            b"\xef\xbb\xbf" + data,
            data.decode("latin-1").encode("utf-16"),
            data.replace(b"\n", b"\r\n"),
            data.replace(b"\n", b"\r"),
            data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :],
            data[:at] + b"\x00" + data[at:],
            data + data,
            data[:at] + b"\x1b[2J" + data[at:],
            b"PK\x03\x04" + data,
            b"\x93NUMPY" + data,
            b"\x80\x04" + data,
            b"[" * 100_000 + data,
            data + b"#" * (17 << 20),
            data[:at] + b"9" * 5000 + data[at:],
        )
    )


SPECIAL = ("pipe", "folder", "missing", "loop", "zero", "null", "kmsg", "sparse", "socket", "link")
"""What stands in the place of a file."""


def _place(work: Path, item: Input) -> None:
    for name, data in item.files.items():
        (work / name).parent.mkdir(exist_ok=True)
        (work / name).write_bytes(data)
    special, _, name = item.special.partition(" ")
    if not special:
        return
    file = work / name
    file.rename(work / "moved")
    targets = {"missing": "none", "loop": file.name, "zero": "/dev/zero", "null": "/dev/null", "kmsg": "/proc/kmsg", "link": str(work / "moved")}
    if special in targets:
        file.symlink_to(targets[special])
    elif special == "pipe":
        os.mkfifo(file)
    elif special == "folder":
        file.mkdir()
    elif special == "socket":
        import socket

        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as made:
            made.bind(str(file))
    else:
        with file.open("wb") as stream:
            stream.truncate(5 << 30)


def run_input(call: Callable[[list[str]], object], item: Input) -> tuple[str, list[tuple[str, str]]]:
    """How a call of `call` with an input ended, and its findings as (kind, what was seen)."""
    folder = Path(tempfile.mkdtemp(prefix="dysharp-attack-"))
    try:
        work = folder / "work"
        work.mkdir()
        _place(work, item)
        child = os.fork()
        if child == 0:
            _child(call, item, folder)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out, err = ((folder / name).read_text("utf-8", "replace") for name in ("out", "err"))
        return f"exit {code}", [(kind, text[:500]) for kind, text in (*_faults(item, code, out, err), *_files(item, code, work))]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _faults(item: Input, code: int, out: str, err: str) -> Iterator[tuple[str, str]]:
    if code == RAISED:
        yield "traceback", " / ".join(err.strip().splitlines()[-6:])
        return
    if code in (-signal.SIGALRM, -signal.SIGXCPU, -signal.SIGKILL):
        yield "hang", signal.Signals(-code).name
    elif code not in (0, 1, 2):
        yield "exit code", f"{code}: {err[-300:]}"
    elif code and "error: " not in (err.splitlines() or [""])[-1] and code == 2:
        yield "no message", err[-300:]
    if "out of memory" in err:
        yield "memory", err[-300:]
    if wrong := next((c for c in out + err if not (c.isprintable() or c == "\n")), None):
        yield "control character", repr((out + err)[max(0, (at := (out + err).index(wrong)) - 60) : at + 20])
    if any(len(line) > MOST_LINE for line in err.splitlines()):
        yield "no message", f"a line of {max(map(len, err.splitlines()))} characters"
    given = " ".join(item.args) + item.files.get(item.family.removeprefix("file "), b"").decode("latin-1")
    if (
        code == 0
        and (found := re.search(r"(?<![\w.-])-?(nan|inf|Infinity)(?![\w-])", out))
        and "nan" not in given.lower()
        and "inf" not in given.lower()
    ):
        yield "NaN", out[max(0, found.start() - 60) : found.end() + 20]


MADE = ("o.", "s", "figures", "study")
"""Starts of names of what a call may make."""


def _files(item: Input, code: int, work: Path) -> Iterator[tuple[str, str]]:
    hurt = item.special.partition(" ")[2]
    for name, data in item.files.items():
        if name != hurt and name not in item.args and not ((work / name).is_file() and (work / name).read_bytes() == data):
            yield "lost file", name
    left = {str(path.relative_to(work)) for path in work.rglob("*")} - {*item.files} - {"moved", "s"}
    for name in sorted(left):
        if name.split("/")[-1].startswith(".dysharp-") or (code == 2 and name.startswith("o.") and item.family != "option trace"):
            yield "left file", name


def _child(call: Callable[[list[str]], object], item: Input, folder: Path) -> NoReturn:
    code = RAISED
    try:
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))  # noqa: SIM115  until the end
        os.chdir(folder / "work")
        used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        resource.setrlimit(resource.RLIMIT_CPU, (int(used) + CPU_S, int(used) + CPU_S + 5))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        signal.alarm(WALL_S)
        call(list(item.args))
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    except BaseException:
        os.write(2, traceback.format_exc().encode("utf-8", "backslashreplace"))
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def attack(count: int, seed: int, jobs: int = 1, only: str = "") -> Iterator[tuple[Input, str, list[tuple[str, str]]]]:
    """Every input with its end and its findings, by `jobs` processes."""
    chosen = [item for item in inputs(count, seed) if only in f"{item.family} {' '.join(item.args)}"]
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for job in range(jobs):
            if (child := os.fork()) == 0:
                with open(f"{folder}/{job}", "w", encoding="utf-8") as out:
                    for number in range(job, len(chosen), jobs):
                        out.write(json.dumps([number, *run_input(main, chosen[number])]) + "\n")
                        out.flush()
                os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        done = [json.loads(line) for job in range(jobs) for line in Path(folder, str(job)).read_text().splitlines()]
    for number, end, findings in sorted(done):
        yield chosen[number], end, [(kind, text) for kind, text in findings]


def load_slow_modules() -> None:
    """Import and compile before the first fork, so that an input costs milliseconds."""
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        os.chdir(folder)
        _place(Path(folder), Input("", (), {name: data if isinstance(data, bytes) else data.encode() for name, (data, _) in seeds().items()}))
        for args in (*BASES.values(), *(calls[0] for _, calls in seeds().values())):
            with contextlib.suppress(SystemExit):
                main(list(args))
        os.chdir(here)


def run() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="only inputs with this text in family and arguments")
    asked = parser.parse_args()
    begun = time.monotonic()
    load_slow_modules()
    print(f"loaded in {time.monotonic() - begun:.0f} s", flush=True)
    ends: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for item, end, findings in attack(asked.count, asked.seed, asked.jobs, asked.only):
        ends[end] += 1
        for kind, text in findings:
            found[kind] += 1
            hurt = item.files.get(item.family.removeprefix("file "), b"")[:300] if item.family.startswith("file") else b""
            print(f"{kind} [{item.family}] {item.special} {[arg[:80] for arg in item.args]}\n    {text}\n    {hurt!r}", flush=True)
    print(f"{sum(ends.values())} inputs in {time.monotonic() - begun:.0f} s, seed {asked.seed}")
    print("  ".join(f"{end}: {n}" for end, n in sorted(ends.items())))
    print("findings: " + ("  ".join(f"{kind}: {n}" for kind, n in sorted(found.items())) or "none"))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(run())
