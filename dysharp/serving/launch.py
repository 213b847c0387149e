"""How an engine starts a layout, and why it refuses one: its own argument rules, kept as data (`launch.toml`)."""

import functools
import shlex
from collections.abc import Iterable
from math import ceil
from pathlib import Path
from typing import Literal, NamedTuple

from dysharp.base import AnyMapping, ByName, Rows, read_toml
from dysharp.model import formats_of, published
from dysharp.serving.engine import Engine, engine_of
from dysharp.serving.exchange import EP_SYSTEMS, ep_system_of
from dysharp.serving.work import Replica, Scenario

FILE = Path(__file__).parent / "data" / "launch.toml"
HOST = 8
"""GPUs of a host, where the file says no other number."""
Task = Literal["together", "prefill", "decode"]
"""What a server does: both, or one of the two."""


class Start(NamedTuple):
    """`command`: starts the engine; on each of `hosts` hosts if it has $RANK. `refuses`: why the engine does not start; `notes`: what may stop it.
    `released`: the engine with the version of these rules."""

    command: str
    refuses: str
    notes: str
    hosts: int
    released: str
    router: str
    """Command of what sends prompts to one pool and then to the other; "": the engine has none."""


@functools.cache
def tables() -> ByName:
    """The file."""
    return read_toml(FILE)


def held(rules: Iterable[ByName], values: AnyMapping) -> Rows:
    """The rules that hold for quantities by name."""
    return [rule for rule in rules if all(values[name] >= least for name, least in rule["when"].items())]


def start_of(engine: Engine, replica: Replica, scenario: Scenario, task: Task = "together") -> Start:
    """How a server of `replica` starts for `scenario.concurrency` requests at once."""
    table, layout, model, on = tables()[engine.name], replica.layout, replica.model, replica.machine
    host = int(tables()["hosts"].get(on.cluster.gpu, HOST))
    usual = engine_of(engine.name)
    kv, usual_kv = replica.formats.kv, usual.cached(replica.formats, model, on.arch)
    if (checkpoint := formats_of(published(model), usual_kv, model)).weights() == replica.formats.weights():
        usual_kv = checkpoint.kv
    system, experts, width = (ep_system_of(replica), model.layer.n_experts, model.layer.expert_hidden) if model.layer else ("", 0, 0)
    shared = model.shared_hidden * (min(layout.dp, layout.ep) == 1)  # a GPU that has tokens of its own has all of a shared expert
    cuts = [(replica.formats.experts, width // layout.moe_tp), *((replica.formats.dense, n // layout.tp) for n in (shared, model.dense_hidden))]
    values: ByName = {
        "tp": layout.tp, "dp": layout.dp, "ep": layout.ep, "pp": layout.pp, "cut": layout.moe_tp, "slots": layout.slots, "gpus": layout.stage_gpus,
        "ampere": int(kv == "fp8" and on.products(kv) == "bf16"), "kv": int(kv == "fp8" != usual_kv),
        "wide": int(kv == "bf16" != usual_kv), "odd": int(any(held == "fp8-block" and n % 128 for held, n in cuts)),
        **{name: int(name == system) for name in EP_SYSTEMS}, "amd": int((on.cluster.gpu and on.gpu.arch).startswith("cdna")),
        "csa": int(model.attention.compressed),
        "draft_tokens": scenario.draft_tokens, "draft_tokens_and_one": scenario.draft_tokens + 1, "all_slots": experts + layout.slots,
        "batch": ceil(scenario.concurrency / layout.dp), "all_batch": ceil(scenario.concurrency), "hosts": ceil(layout.gpus / host), "host": host,
        "step_tokens": engine.step_tokens, "gathered_steps": engine.gathered_steps, "together": 0, "prefill": 0, "decode": 0, task: 1,
        "memory_part": max(f"{engine.memory_part:.2f}", f"{engine.memory_part:g}", key=len), "part": int(engine.memory_part != usual.memory_part),
    }  # fmt: skip
    rules = held(table["rules"], values)
    before, adds, lines, refuses, notes = ([rule[key] for rule in rules if key in rule] for key in ("before", "adds", "line", "refuses", "notes"))
    first, last = ([one.replace("{lines}", " ".join(lines))] if lines else [] for one in table.get("options", ("", "")))
    command = " ".join([*first, *before, table["launch"], *adds, *last]).format(model=shlex.quote(model.repository or model.name), **values)
    return Start(command, "".join(refuses[:1]), "; ".join(notes), int(values["hosts"]), f"{engine.name} {table['version']}", table.get("router", ""))
