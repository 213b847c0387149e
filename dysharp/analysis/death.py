"""A GPU or a plane of switches that dies in the middle of a pass: what is lost, who notices, how long it takes."""

import tomllib
from importlib import resources

import numpy as np

from dysharp.base import ConfigError, Tally
from dysharp.program import Program, Trace
from dysharp.specs import Cluster
from dysharp.systems import System
from dysharp.workload import Routing, needed_gpus

Facts = list[tuple[str, str]]


def death(text: str, program: Program, trace: Trace, routing: Routing, cluster: Cluster, system: System) -> Facts:
    """Facts of `text`: "gpu:3@50" or "plane:0@50", dead at 50 percent of the time of the pass of `trace`.

    Rows and tokens are counted in the trace. Who notices and how long it takes are published or assumed (`deaths.toml`). Raises ConfigError.
    """
    part, number, percent = _read(text, {"gpu": program.n_nodes, "plane": cluster.n_switches})
    at = int(trace.time_ps * percent / 100)
    facts = [("dies", f"{part} {number} at {percent:g} %, {at / 1e6:.2f} of {trace.time_ps / 1e6:.2f} us")]
    facts += _of_gpu(number, at, program, trace, routing) if part == "gpu" else _of_plane(at, program, trace, cluster)
    known = tomllib.loads(resources.files(__package__).joinpath("deaths.toml").read_text("utf-8"))
    for table, verb, what in (("notice", "notices", "who"), ("back", "on again", "how")):
        for entry in known[table]:
            of = entry.get("of", "")
            if entry["part"] == part and (not of or system.name in of.split() or (of == "switch" and bool(system.reach.switch))):
                low, high = entry["seconds"]
                facts.append((verb, f"{entry[what]}: {low:g} to {high:g} s ({entry['source']})"))
    return facts


def _read(text: str, most: Tally) -> tuple[str, int, float]:
    """(part, its number, percent of the pass)."""
    part, _, rest = text.partition(":")
    number, _, percent = rest.partition("@")
    try:
        read = int(number), float(percent)
    except ValueError:
        read = -1, -1.0
    if part not in most or not 0 <= read[0] < most[part] or not 0 <= read[1] <= 100:
        ends = " or ".join(f"{name}:0@0 to {name}:{n - 1}@100" for name, n in most.items() if n)
        raise ConfigError(f"dies: found {text[:40]!r}, expected {ends} (percent of the pass)")
    return part, *read


def _of_gpu(gpu: int, at: int, p: Program, trace: Trace, routing: Routing) -> Facts:
    operator = np.array([t.operator for t in p.templates])[p.ops.template]
    owner = np.repeat(np.arange(len(p.ops.node)), np.diff(p.members.ptr))
    to_it = (operator[owner] == "dispatch") & (p.members.node == gpu) & (p.ops.node[owner] != gpu)
    rows, here = int(to_it.sum()), int((to_it & (trace.member <= at) & (trace.member >= 0)).sum())
    token = np.arange(routing.n_tokens)
    needs = needed_gpus(routing)[:, gpu] & (token // routing.tokens_per_gpu != gpu)
    late = np.zeros(routing.n_tokens, bool)
    late[p.ops.key[(operator == "combine") & (p.ops.wire >= 0) & (trace.done > at)]] = True
    waiting, n = int((needs & late).sum()), int(needs.sum())
    return [
        ("lost with it", f"{routing.tokens_per_gpu} tokens of its own, and work on rows of others, {here / max(rows, 1):.0%} of which had arrived"),
        ("lost to others", f"{waiting} of {n} tokens that need its experts have no sum yet"),
    ]


def _of_plane(at: int, p: Program, trace: Trace, cluster: Cluster) -> Facts:
    """Trains are spread over all planes, so a plane has its share of what is on the way."""
    flying = int(((p.ops.wire >= 0) & (trace.start >= 0) & (trace.start <= at) & (trace.done > at)).sum())
    planes, left = cluster.n_switches, (trace.time_ps - at) / 1e6
    longer = f"at most {left / (planes - 1):.2f} us longer" if planes > 1 else "never ends"
    return [
        ("lost with it", f"a {planes}th of each of {flying} trains on the way; senders repeat them where the link tells"),
        ("the rest", f"{planes - 1} of {planes} planes carry it: {longer}"),
    ]
