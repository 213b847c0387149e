"""Regression values of packets and trains, and of what packaged clusters and models derive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

from dysharp.base.errors import ConfigError
from dysharp.isa.commands import RULES, Command, Data, Dtype, Half, Stage, virtual_channel
from dysharp.isa.dump import dump
from dysharp.isa.efficiency import FORMATS, closed_efficiency, encoded_efficiency
from dysharp.isa.framing import Framing, pull_train, push_train, stripe_ps
from dysharp.isa.packets import Packet, _crc8, decode, encode, flits, partial_sums, replica_form
from dysharp.specs import list_whole_models, load_cluster, load_model, load_whole
from dysharp.specs.cluster import file_values
from tests.stored_values import Cases, Table, digest, parts_of

STORED = Table(__file__)
Columns = dict[str, Any]
CLUSTERS = (
    "paper-gh200-nvl32",
    "paper-dgx-h100-x2,scale_out.nic_GBps=40",
    "hw-dgx-b200-x2",
    "hw-mi300x",
    "hw-dgx-h100,link_GBps=400",
    "paper-cloudmatrix384",
)


def packets(op: Command) -> Iterator[Packet]:
    """Packets of a command with fields of their own, short and long."""
    rule = RULES[op]
    for k, targets in enumerate(((3,), (1, 4, 9), tuple(range(0, 20, 2)))):
        halves: dict[Half, Columns] = {
            Half.REQUEST: {"address": 0x123456 + k, "stage": Stage(k % 2), "targets": targets[::-1]},
            Half.REPLICA: {"address": 0x6543 * k, "stage": Stage(k % 2), "targets": targets, "local_experts": (12, 32, 40)[k]},
            Half.ANSWER: {"address": 77 + k, "stage": Stage(k % 2), "count": 3 + k},
            Half.NOTICE: {"token": 99 + k, "expert": 7 + k},
            Half.PLAIN: {"address": 0xABCDEF + k},
            Half.GROUP: {"address": 0xABC + k, "group": 5 + k},
            Half.EXPLICIT: {"address": 0xAA + k, "further": tuple(300 + 7 * t for t in targets[: 4 * k])},
            Half.ROWSP: {"gpu": 3 + k, "region": 9 + k, "row": 1000 + k, "offset": 48 * k},
            Half.ANNOUNCEMENT: {"gpu": 4 + k, "region": 6 + k, "rows": 12345 + k},
        }
        size = (1, 40, 256)[k]
        used: Columns = dict(halves[rule.half])
        used |= {"payload": bytes((7 * i + k) % 251 for i in range(size))} if rule.data is Data.PAYLOAD else {}
        used |= {"wanted_bytes": size} if rule.data is Data.WANTED else {}
        dtype = (Dtype.FLOAT32, Dtype.INT32, Dtype.INT64)[k] if op is Command.PARTIAL else (Dtype.NONE, Dtype.BFLOAT16, Dtype.INT64)[k]
        yield Packet(op, virtual_channel(op, 2 * k + 1), source=11 + k, tag=500 + k, attempt=k, dtype=dtype, **used)


def packet_values(op: Command) -> Columns:
    """Bytes and words of the packets of a command."""
    out: Columns = {"rule": [RULES[op].name, RULES[op].layout.bits, digest(RULES[op].layout.positions())]}
    for k, packet in enumerate(packets(op)):
        wire = encode(packet, experts=64)
        assert decode(wire, local_experts=packet.local_experts or None) == packet
        out[str(k)] = [wire[:16].hex(), digest(wire.hex()), digest(dump(packet)), flits(packet)]
    return out


def train_values() -> Columns:
    """Trains of framings with every field of its own."""
    odd = Framing("odd", 96, 2, 3, 1, 2, 3, 4)
    out: Columns = {}
    for framing in (
        Framing("store"),
        Framing("list", 256, targets_per_ext=8),
        Framing("explicit", address_per_target=1, source_ack_per_target=1),
        odd,
    ):
        for train in (push_train, pull_train):
            found = [
                asdict(train(framing, size, n, aux, flit))
                for size in (1, 96, 128, 129, 1000)
                for n, aux, flit in ((1, 0, 16), (3, 24, 16), (9, 200, 32))
            ]
            out[f"{framing.name} {train.__name__}"] = digest(found)
    sizes = ((1000, 7, 4, 900), (1000, 8, 4, 900), (1024, 3, 18, 7), (50, 0, 2, 9))
    return out | {"stripes": [stripe_ps(*size) for size in sizes], "default": list(asdict(Framing("store")).values())}


def other_values() -> Columns:
    """Forms of replicas, sums of two types, checksums and efficiencies."""
    out: Columns = {"forms": " ".join(replica_form(e, n).value for e in (15, 16, 32, 33) for n in (1, 3, 4))}
    request = Packet(Command.DYLD, 1, 2, 3, 1, Dtype.BFLOAT16, 4096, Stage.COMBINE, (1, 2), wanted_bytes=200)
    out["partial"] = digest([asdict(p) | {"payload": p.payload.hex()} for p in partial_sums(request, bytes(400), 5, 9, 96)])
    out["crc"] = [_crc8(bytes(range(n))) for n in (1, 15, 16, 17, 200)]
    for name in FORMATS:
        out[name] = [efficiency(name, size, n) for efficiency in (closed_efficiency, encoded_efficiency) for size in (1, 128, 250) for n in (1, 8, 9)]
    return out


def derived(value: Any) -> Columns:
    """The properties of a spec."""
    names = [name for name in dir(type(value)) if isinstance(getattr(type(value), name), property)]
    found: Columns = {}
    for name in names:
        try:
            one = getattr(value, name)
        except ConfigError as error:
            one = str(error)
        found |= {name: one} if isinstance(one, (bool, int, float, str, tuple)) else {}
    return found


def cluster_values(name: str) -> Columns:
    """What a cluster derives."""
    cluster = load_cluster(name)
    out = derived(cluster) | {"file": digest(file_values(cluster)), "fewer": digest(str(cluster.with_gpus(4)) if cluster.domains == 1 else "")}
    out |= {f"nic {key}": value for key, value in derived(cluster.scale_out).items()} if cluster.scale_out else {}
    return out | {f"{dtype} peak": cluster.peak_flops_per_us(dtype) for dtype in ("bf16", "fp8")}


def model_values(load: Callable[[str], Any], name: str) -> Columns:
    """What a model derives."""
    return derived(load(name)) | {"fields": digest(str(load(name)))}


CASES: Cases = {
    **{op.name: partial(packet_values, op) for op in Command}, "trains": train_values, "others": other_values,
    **{name: partial(cluster_values, name) for name in CLUSTERS},
    **{name: partial(model_values, load_model, name) for name in ("deepseek-v3", "mixtral-8x7b", "S-8", "qwen3-next-80b")},
    **{f"whole {name}": partial(model_values, load_whole, name) for name in list_whole_models()[::4]},
    "whole models": lambda: {"names": list_whole_models()},
}  # fmt: skip
PARTS = parts_of(CASES, "")
