"""The setting that `network` simulates, from a cluster, from the name of a recorded curve, or from numbers."""

import math
import re
from dataclasses import dataclass, replace
from typing import Any

from dysharp.engine.flit.config import PATTERNS, WORD, NetworkConfig, RouterConfig, Traffic
from dysharp.errors import ConfigError, nearest
from dysharp.specs import Cluster, load_cluster

MAX_LOADS = 1000
GROUPS = 2  # groups of virtual channels: requests, answers
HEADER_FLITS, PACKET_BYTES = 1, 128  # header and payload of a store

DELAYS = {  # name on the command line: (owner, field)
    "terminal": ("network", "terminal_delay"),
    "link": ("network", "link_delay"),
    "routing": ("router", "routing_delay"),
    "vc": ("router", "vc_alloc_delay"),
    "switch": ("router", "sw_alloc_delay"),
    "traversal": ("router", "traversal_delay"),
    "credit": ("router", "credit_delay"),
}
FIELDS = {  # argument of `network_setting`: (owner, fields)
    "topology": ("network", "topology"),
    "k": ("network", "k"),
    "n": ("network", "n"),
    "vcs": ("router", "num_vcs"),
    "buffer": ("router", "vc_buf_size"),
    "speedup": ("router", "internal_speedup"),
    "lanes": ("router", "input_speedup", "output_speedup"),
    "allocator": ("router", "vc_allocator", "sw_allocator"),
    "speculative": ("router", "speculative"),
    "hold_switch": ("router", "hold_switch"),
}
_SUFFIXES = ("int2", "io2", "islip", "spec", "rd1", "hot4")


@dataclass(frozen=True, slots=True)
class Setting:
    """A network, its traffic, and the length of a cycle in ps (0 = not known)."""

    name: str
    config: NetworkConfig
    traffic: Traffic
    cycle_ps: int = 0


def parse_loads(text: str) -> tuple[float, ...]:
    """Ascending loads from a text such as `0.1,0.2,0.5` or `first:last:step`. A load is above 0 and at most 1."""
    try:
        if ":" in text:
            first, last, step = (float(part) for part in text.split(":"))
            if not (math.isfinite(first) and math.isfinite(last) and step > 0 and (last - first) / step < MAX_LOADS):
                raise ValueError
            loads = [round(first + i * step, 12) for i in range(math.floor((last - first) / step + 1e-9) + 1)]
        else:
            loads = [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"load: found {text[:60]!r}, expected loads such as 0.1,0.5,0.9 or first:last:step such as 0.05:0.95:0.05") from None
    if not loads or len(loads) > MAX_LOADS:
        raise ConfigError(f"load: found {len(loads)} loads in {text[:60]!r}, expected 1 to {MAX_LOADS}")
    for load in loads:
        if not 0 < load <= 1:
            raise ConfigError(f"load: found {load:g}, expected flits per cycle and terminal above 0 and at most 1")
    return tuple(sorted(dict.fromkeys(loads)))


def parse_delays(text: str) -> dict[str, int]:
    """{name of DELAYS: cycles} from a text such as `terminal=10,link=5`."""
    delays: dict[str, int] = {}
    for part in text.split(","):
        name, equals, value = (p.strip() for p in part.partition("="))
        if name not in DELAYS:
            raise ConfigError(f"delays: found {name[:40]!r}{nearest(name, DELAYS)}")
        if not equals or not value.isascii() or not value.isdigit():
            raise ConfigError(f"delays: found {part.strip()[:40]!r}, expected {name}=CYCLES, a whole number")
        delays[name] = int(value)
    return delays


def parse_traffic(pattern: str, packet_flits: int, burst: str | None = None) -> Traffic:
    """Traffic from the text of a pattern.

    Patterns: `uniform`, the name of a permutation, `permutation:T,...`, `hotspot:W,...` (weights of the first terminals;
    all other terminals have weight 1). `burst`: `ON:OFF` in cycles.
    """
    name, colon, values = pattern.partition(":")
    if name not in PATTERNS:
        raise ConfigError(f"pattern: found {name[:40]!r}{nearest(name, PATTERNS)}")
    if colon and name not in ("hotspot", "permutation"):
        raise ConfigError(f"pattern: found {pattern[:60]!r}, expected no values with {name}")
    states = None
    try:
        weights = tuple(float(v) for v in values.split(",")) if name == "hotspot" else ()
        targets = tuple(int(v) for v in values.split(",")) if name == "permutation" else ()
    except ValueError:
        raise ConfigError(f"pattern: found {pattern[:60]!r}, expected numbers, such as hotspot:4 or permutation:1,0,3,2") from None
    if burst is not None:
        try:
            on, off = (float(v) for v in burst.split(":"))
        except ValueError:
            raise ConfigError(f"burst: found {burst[:40]!r}, expected ON:OFF, mean cycles of the two states, such as 50:50") from None
        states = (on, off)
    return Traffic(name, packet_flits, weights, targets, states)


def curve_setting(name: str) -> Setting:
    """The setting of a recorded curve, from its name, such as `xbar8_d10_v4b8_p9_int2` (docs/network.md)."""
    shapes = "|".join(f"(?P<{shape}>{pattern})" for shape, pattern in zip(("x", "f", "t"), _flat_shapes(), strict=True))
    match = re.fullmatch(rf"(?:{shapes})(?:_d(?P<d>\d+))?_v(?P<v>\d+)b(?P<b>\d+)_p(?P<p>\d+)(?P<rest>(?:_\w+?)*)", name)
    if match is None:
        raise ConfigError(f"curve: found {name[:60]!r}, expected a name such as xbar8_v4b8_p9_int2, fly4x4_v4b8_p1 or fattree4x2_v4b8_p9_transpose")
    words = [w for w in match["rest"].split("_") if w and not re.fullmatch(r"seed\d+", w)]
    patterns = [w for w in words if w in PATTERNS]
    for word in words:
        if word not in _SUFFIXES and word not in PATTERNS:
            raise ConfigError(f"curve: found {word[:40]!r} in {name[:60]!r}{nearest(word, (*_SUFFIXES, *PATTERNS))}")
    islip, lanes = "islip" if "islip" in words else "separable_input_first", 2 if "io2" in words else 1
    router = RouterConfig(
        int(match["v"]), int(match["b"]), islip, islip, 2 if "int2" in words else 1, lanes, lanes, "spec" in words, int("rd1" in words)
    )
    k, n = next((int(match[f"{key}k"]), match.groupdict().get(f"{key}n")) for key in ("x", "f", "t") if match[key])
    shape = "fattree" if match["t"] else "fly"
    config = NetworkConfig(shape, k, int(n or (2 if match["f"] else 1)), router, terminal_delay=int(match["d"] or 1))
    pattern = "hotspot:4" if "hot4" in words else (patterns or ["uniform"])[0]
    return Setting(name, config, parse_traffic(pattern, int(match["p"])))


def _flat_shapes() -> tuple[str, str, str]:
    return r"xbar(?P<xk>\d+)", r"fly(?P<fk>\d+)x(?P=fk)", r"fattree(?P<tk>\d+)x(?P<tn>\d+)"


def cluster_setting(cluster: Cluster, ports: int | None = None) -> Setting:
    """The setting of one switch of a cluster under 128 B stores.

    `ports`: ports of the network; None: the ports of the switch. Virtual channels of both groups, the speed-up and the
    link delay come from the cluster.
    """
    if not cluster.n_switches:
        raise ConfigError(f'cluster "{cluster.name}": found no switch (every pair of GPUs has a link), expected one')
    if ports is None:
        ports = -(-cluster.n_gpus * cluster.links_per_gpu // cluster.n_switches)
        if ports > WORD:
            raise ConfigError(f'cluster "{cluster.name}": found a switch of {ports} ports, expected at most {WORD}; set k to take a part of it')
    cycle_ps = round(cluster.flit_bytes * 1_000_000 * cluster.links_per_gpu / cluster.link_bytes_per_us)
    if not cluster.vc_flits:
        raise ConfigError(f'cluster "{cluster.name}": found virtual channels of infinite depth, expected a number of flits; set --buffer')
    router = RouterConfig(GROUPS * cluster.n_vcs, cluster.vc_flits, internal_speedup=cluster.internal_speedup)
    delay = max(1, round(cluster.link_latency_ps / cycle_ps))
    config = NetworkConfig("fly", ports, 1, router, terminal_delay=delay)
    return Setting(f"one switch of {cluster.name}", config, Traffic("uniform", HEADER_FLITS + PACKET_BYTES // cluster.flit_bytes), cycle_ps)


def network_setting(
    *, cluster: str | None = None, curve: str | None = None, packet_flits: int | None = None, pattern: str | None = None,
    burst: str | None = None, delays: str | None = None, **fields: Any,
) -> Setting:  # fmt: skip
    """The setting of a base with changes: every argument that is not None replaces a value of the base.

    Base: `cluster`, `curve`, or one 8 x 8 router with 4 virtual channels of 8 flits. `fields`: arguments of `FIELDS`, with a value for the
    network or its router. Raises ConfigError for another name.
    """
    if cluster is not None and curve is not None:
        raise ConfigError(f"network: found both cluster {cluster[:40]!r} and curve {curve[:40]!r}, expected one of the two")
    base = Setting("network", NetworkConfig(), Traffic())
    if cluster is not None:
        base = cluster_setting(load_cluster(cluster), fields.get("k"))
    elif curve is not None:
        base = curve_setting(curve)
    changed: dict[str, dict[str, Any]] = {"network": {}, "router": {}}
    for name, value in fields.items():
        if name not in FIELDS:
            raise ConfigError(f"network: found the argument {name!r}{nearest(name, FIELDS)}")
        owner, *names = FIELDS[name]
        changed[owner] |= {} if value is None or value is False else dict.fromkeys(names, value)
    for name, cycles in (parse_delays(delays) if delays is not None else {}).items():
        owner, field = DELAYS[name]
        changed[owner][field] = cycles
    config = replace(base.config, router=replace(base.config.router, **changed["router"]), **changed["network"])
    flits = base.traffic.packet_flits if packet_flits is None else packet_flits
    traffic = replace(base.traffic, packet_flits=flits) if pattern is None else parse_traffic(pattern, flits)
    if burst is not None:
        traffic = replace(traffic, burst=parse_traffic("uniform", 1, burst).burst)
    return Setting(base.name, config, traffic, base.cycle_ps)
