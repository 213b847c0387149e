"""Chakra execution traces, read back by a decoder of this file: the payload of the Program, no circle, and a replay that ends."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import dysharp
from dysharp.analysis.timeline.task_graph import task_graph
from dysharp.api.timed import Timed
from dysharp.base.errors import ConfigError
from dysharp.cli.app import cli
from dysharp.program.tables import Kind
from dysharp.specs import load_cluster, load_model
from dysharp.workload import make_routing

GPUS, TOKENS = 4, 32
SYSTEMS = ("dysharp", "deepep", "nvls", "comet", "ccfuser", "moe-hub", "mh-base", "megatron-ag")
COMP, SEND, RECV = 4, 5, 6


@dataclass
class Node:
    """A node of the file: field numbers of the published schema."""

    gpu: int
    id: int
    name: str
    type: int
    after: list[int]
    micros: int
    attributes: dict[str, Any]


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not data[at - 1] & 0x80:
            return value, at


def fields(data: bytes) -> dict[int, list[Any]]:
    """{field number: values}; numbers as they lie, strings and messages as bytes."""
    out, at = defaultdict(list), 0
    while at < len(data):
        tag, at = varint(data, at)
        value, at = varint(data, at)
        if tag & 7 == 2:
            out[tag >> 3].append(data[at : at + value])
            at += value
        else:
            assert tag & 7 == 0
            out[tag >> 3].append(value)
    return out


def messages(path: Path) -> list[dict[int, list[Any]]]:
    data, at, out = path.read_bytes(), 0, []
    while at < len(data):
        size, at = varint(data, at)
        out.append(fields(data[at : at + size]))
        at += size
    return out


def attribute(data: bytes) -> tuple[str, Any]:
    entry = fields(data)
    (value,) = [v[0] for number, v in entry.items() if number != 1]
    return entry[1][0].decode(), value.decode() if isinstance(value, bytes) else value


def packed(values: list[bytes]) -> list[int]:
    out, data, at = [], b"".join(values), 0
    while at < len(data):
        value, at = varint(data, at)
        out.append(value)
    return out


def read(paths: list[Path]) -> list[Node]:
    out = []
    for gpu, path in enumerate(paths):
        head, *nodes = messages(path)
        assert head[1] == [b"0.0.4"]
        for n in nodes:
            attributes = dict(attribute(a) for a in n[10])
            out.append(Node(gpu, n.get(1, [0])[0], n[2][0].decode(), n[3][0], packed(n.get(5, [])), n.get(7, [0])[0], attributes))
    return out


@pytest.fixture(scope="module", params=SYSTEMS)
def timed(request: pytest.FixtureRequest) -> Timed:
    return dysharp.trace(request.param, gpus=GPUS, tokens=TOKENS, seed=3)


@pytest.fixture
def nodes(timed: Timed, tmp_path: Path) -> list[Node]:
    return read(timed.save_chakra(tmp_path))


def payload(nodes: list[Node], kind: int) -> Counter[str]:
    found = Counter[str]()
    for n in nodes:
        if n.type == kind:
            found[n.attributes["operator"]] += n.attributes["comm_size"]
    return found


def test_messages_carry_the_declared_payload(timed: Timed, nodes: list[Node]) -> None:
    """Pushes bring the declared bytes down the receivers' links; pulls send the declared bytes up the responders' links."""
    program = timed.recording.program
    declared = program.declared.traffic
    pulls = {t.operator for t in program.templates if t.kind in (Kind.GET, Kind.PULL_REDUCE)}
    found = payload(nodes, RECV)
    assert found == payload(nodes, SEND)
    for operator in ("dispatch", "combine"):
        assert found[operator] == declared["up" if operator in pulls else "down"][operator] > 0


def test_pairs_carry_one_copy_per_token_and_gpu(tmp_path: Path) -> None:
    """Dispatch of DeepEP, from the routing alone."""
    done = dysharp.trace("deepep", gpus=GPUS, tokens=TOKENS, seed=3)
    model, cluster = load_model("deepseek-v2-lite"), load_cluster("paper-gh200-nvl32").with_gpus(GPUS)
    routing = make_routing(model.routing, model, GPUS, TOKENS, seed=3)
    gpu = routing.expert // (model.n_experts // cluster.n_gpus)
    wanted = Counter((i // TOKENS, int(d)) for i, row in enumerate(gpu) for d in np.unique(row) if d != i // TOKENS)
    found = Counter[tuple[int, int]]()
    for n in read(done.save_chakra(tmp_path)):
        if n.type == SEND and n.attributes["operator"] == "dispatch":
            found[n.attributes["comm_src"], n.attributes["comm_dst"]] += n.attributes["comm_size"]
    assert {pair: size / wanted[pair] for pair, size in found.items()} == dict.fromkeys(wanted, model.hidden * 2)


def test_a_replay_ends(nodes: list[Node]) -> None:
    """Nodes wait for nodes in front of them alone, and each message has one sender and one receiver. So every node comes to run."""
    sends, recvs = (
        {(n.attributes["comm_src"], n.attributes["comm_dst"], n.attributes["comm_tag"]): n for n in nodes if n.type == kind} for kind in (SEND, RECV)
    )
    assert len(sends) == len(recvs) == sum(n.type == SEND for n in nodes)
    assert sends.keys() == recvs.keys()
    assert all(n.gpu == n.attributes["comm_src"] for n in sends.values())
    assert all(n.gpu == n.attributes["comm_dst"] for n in recvs.values())
    needs = {(n.gpu, n.id): [(n.gpu, i) for i in n.after] for n in nodes}
    for tag, n in recvs.items():
        needs[n.gpu, n.id].append((sends[tag].gpu, sends[tag].id))
    assert len(needs) == len(nodes)
    ended: set[tuple[int, int]] = set()
    left = list(needs)
    while left:
        ready = [node for node in left if ended.issuperset(needs[node])]
        assert ready, "a circle of nodes"
        ended |= set(ready)
        left = [node for node in left if node not in ended]


def test_gemms_wait_for_the_copies_that_fill_their_tiles(tmp_path: Path) -> None:
    """DySHARP's GEMMs begin tile by tile: some GEMM waits for each copy of Dispatch, and some GEMM waits for less than half of them."""
    nodes = read(dysharp.trace("dysharp", gpus=GPUS, tokens=TOKENS).save_chakra(tmp_path))
    for gpu in range(GPUS):
        mine = [n for n in nodes if n.gpu == gpu]
        copies = {n.id for n in mine if n.type == RECV and n.attributes["operator"] == "dispatch"}
        waits = [copies.intersection(n.after) for n in mine if n.attributes.get("operator") == "gemm1"]
        assert set().union(*waits) == copies
        assert min(map(len, waits)) < len(copies) / 2


def test_tasks_wait_for_tasks_in_front_of_them(timed: Timed, nodes: list[Node]) -> None:
    graph = task_graph(timed.recording, 8)
    assert (graph.on < graph.waits).all()
    assert graph.ops.sum() == timed.recording.program.n_ops


def test_whole_microseconds_sum_to_the_exact_time(timed: Timed, nodes: list[Node]) -> None:
    for gpu in range(GPUS):
        mine = [n for n in nodes if n.gpu == gpu]
        exact = sum(n.attributes.get("duration_ps", 0) for n in mine)
        assert exact > 0
        assert sum(n.micros for n in mine) == exact // 1_000_000


def test_fewer_parts_are_fewer_nodes_of_the_same_bytes(tmp_path: Path) -> None:
    done = dysharp.trace("dysharp", gpus=GPUS, tokens=TOKENS)
    one, eight = (read(done.save_chakra(tmp_path, parts)) for parts in (1, 8))
    assert len(one) < len(eight) / 2
    assert payload(one, SEND)["dispatch"] == payload(eight, SEND)["dispatch"]
    with pytest.raises(ConfigError, match=r"parts: found 0, expected at least 1"):
        done.save_chakra(tmp_path, 0)


def test_the_command_names_its_files(tmp_path: Path) -> None:
    asked = ["trace", "deepep", "--gpus", "4", "--tokens", "16", "--chakra", str(tmp_path / "c")]
    done = CliRunner().invoke(cli, asked)
    assert done.exit_code == 0, done.output
    assert "deepep.0.et to deepep.3.et:" in " ".join(done.stdout.split())  # a long path folds the line
    assert len(json.loads(CliRunner().invoke(cli, [*asked, "--json"]).stdout)["chakra"]) == 4
    assert [path.name for path in sorted((tmp_path / "c").iterdir())] == [f"deepep.{gpu}.et" for gpu in range(4)]
