"""How an engine starts a layout, and why it refuses one: its own argument rules, kept as data (`launch.toml`)."""

import functools
from math import ceil
from pathlib import Path
from typing import Any, Literal

from dysharp.serving.engine import Engine
from dysharp.serving.work import Load, Replica
from dysharp.specs.reading import parse_toml, read_text

FILE = Path(__file__).parent / "data" / "launch.toml"
HOST = 8
"""GPUs of a host, where the file says no other number."""
Task = Literal["together", "prefill", "decode"]
"""What a server does: both, or one of the two."""


@functools.cache
def _tables() -> dict[str, Any]:
    return parse_toml(read_text(FILE), FILE.name)


def released(engine: Engine) -> str:
    """The engine and the version whose rules are known."""
    return f"{engine.name} {_tables()[engine.name]['version']}"


def command(engine: Engine, model: str, replica: Replica, load: Load, task: Task = "together") -> str:
    """The command that starts the engine for `load.users` users of a replica; on several hosts it runs on each."""
    table, values = _tables()[engine.name], _values(engine, replica, load, task)
    held = [rule for rule in table["rules"] if _holds(rule, values)]
    before, adds, lines = ([rule[key] for rule in held if key in rule] for key in ("before", "adds", "line"))
    first, last = ([one.replace("{lines}", " ".join(lines))] if lines else [] for one in table.get("options", ("", "")))
    return " ".join([*first, *before, table["launch"], *adds, *last]).format(model=model, **values)


def said(engine: Engine, replica: Replica, load: Load, key: Literal["refuses", "notes"], task: Task = "together") -> str:
    """Why the engine refuses the replica (`refuses`), or what its older versions do (`notes`); "": nothing."""
    values = _values(engine, replica, load, task)
    return next((str(rule[key]) for rule in _tables()[engine.name]["rules"] if key in rule and _holds(rule, values)), "")


def router(engine: Engine) -> str:
    """The command of what sends prompts to one pool and then to the other; "": the engine has none."""
    return str(_tables()[engine.name].get("router", ""))


def hosts_of(replica: Replica) -> int:
    """Hosts of a replica."""
    return ceil(replica.layout.gpus / _host(replica))


def _host(replica: Replica) -> int:
    return int(_tables()["hosts"].get(replica.machine.cluster.gpu, HOST))


def _holds(rule: dict[str, Any], values: dict[str, int]) -> bool:
    return all(values[name] >= least for name, least in rule["when"].items())


def _values(engine: Engine, replica: Replica, load: Load, task: Task) -> dict[str, int]:
    layout = replica.layout
    return {
        "tp": layout.tp, "dp": layout.dp, "ep": layout.ep, "pp": layout.pp, "cut": layout.moe_tp, "slots": layout.slots, "gpus": layout.stage_gpus,
        "kv": int(replica.formats.kv == "fp8" != engine.kv), "drafts": load.drafts, "drafts_and_one": load.drafts + 1,
        "batch": ceil(load.users / layout.dp), "all_batch": ceil(load.users), "hosts": hosts_of(replica), "host": _host(replica),
        "step_tokens": engine.step_tokens, "together": 0, "prefill": 0, "decode": 0, task: 1,
    }  # fmt: skip
