"""A measured step as Chakra traces, read back by the decoder of the traces of Programs."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

import dysharp
from dysharp.api.explaining import Explanation
from dysharp.api.profile_chakra import write_step
from dysharp.base.errors import ConfigError
from dysharp.specs import load_model
from tests.analysis.test_chakra import COMP, RECV, SEND, Node, read, test_a_replay_ends
from tests.profiles.made import LAYERS, run_of, write

RANKS = 8


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> list[Node]:
    folder = tmp_path_factory.mktemp("step")
    done = dysharp.explain(*write(folder, run_of(1)), model="deepseek-v3", layout="ep=8,gpus=8")
    assert isinstance(done, Explanation)
    return read(write_step(done, folder))


def test_every_rank_sends_to_every_other_in_each_exchange(nodes: list[Node]) -> None:
    """Experts of a token lie in four of eight groups, here one on each GPU, nearly always in all four; 4096 tokens are sent in BF16."""
    test_a_replay_ends(nodes)
    sends = [n for n in nodes if n.type == SEND]
    assert len(sends) == len([n for n in nodes if n.type == RECV]) == RANKS * (RANKS - 1) * 2 * LAYERS
    rows = 4096 * load_model("deepseek-v3").hidden * 2
    (size,) = {n.attributes["comm_size"] for n in sends}
    assert size == pytest.approx(rows * 4 / 8, rel=0.01)


def test_kernels_keep_their_times_and_their_order(nodes: list[Node]) -> None:
    """On one stream: the kernel behind an exchange begins when all its rows have come; a wait for other ranks takes no time."""
    own = [n for n in nodes if n.gpu == 3]
    took = sum(e["dur"] for e in run_of(1)[0]["traceEvents"] if e["cat"] == "kernel")
    assert sum(n.micros for n in own) == pytest.approx(took - (3 + 40 + 50) * LAYERS, abs=1)
    for before, after in itertools.pairwise(own):
        if after.type == COMP:
            assert before.id in after.after
    assert {n.micros for n in own if n.attributes["operator"] == "EP wait"} == {0}


def test_a_step_without_sizes_is_refused(tmp_path: Path) -> None:
    done = dysharp.explain(*write(tmp_path, run_of(1)))
    assert isinstance(done, Explanation)
    with pytest.raises(ConfigError, match="found exchanges without sizes, expected --model and --layout"):
        write_step(done, tmp_path)
