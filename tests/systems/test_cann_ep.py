"""cann-ep: levels of the fabric by hand, and what flags and counts cost a core."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from layers import TINY, cluster

from dysharp.base.errors import ConfigError
from dysharp.engine.burst.run import run_burst
from dysharp.systems import System, get_system
from dysharp.workload import routing_from

ONE = get_system("cann-ep")


def us(experts: list[int], system: System = ONE, **options: object) -> float:
    """Dispatch and Combine of one row from each of eight NPUs to NPU `experts[gpu]`."""
    model = replace(TINY, n_experts=8, topk=1, tokens_per_gpu=1)
    routing = routing_from(np.array(experts)[:, None], n_experts=8, n_gpus=8)
    program = system.plan(model, cluster(8), routing, "fwd", system.options(compute=False, **options))
    return run_burst(program)[0].time_ps / 1e6


def test_levels_are_own_memory_card_node_and_two_switches() -> None:
    options = ONE.options(card=2, node=4)
    to = np.arange(8, dtype=np.int32)
    assert options.level(np.zeros(8, np.int32), to).tolist() == [0, 1, 2, 2, 3, 3, 3, 3]
    assert options.hops_ns == (0, 218, 929, 2500)


def test_a_core_waits_for_the_level_of_its_write_in_both_directions() -> None:
    node = {"card": 2, "node": 4}
    card, far = us([1, 0, 3, 2, 5, 4, 7, 6], **node), us([4, 5, 6, 7, 0, 1, 2, 3], **node)
    assert far - card == pytest.approx(2 * (2.5 - 0.218))


def test_flags_and_counts() -> None:
    far = [4, 5, 6, 7, 0, 1, 2, 3]
    apart, fast, inside = us(far), us(far, mode="low-latency"), us(far, mode="low-latency", flags="inside")
    assert apart - fast == pytest.approx(0.045 * 8 * 8 - 3.8)  # counts of 8 NPUs and 8 experts, no flag behind a row of Dispatch
    assert fast - inside == pytest.approx(2 * 3.8)


@pytest.mark.parametrize("name", ["cann-ep", "multiwrite"])
def test_cards_divide_a_node(name: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{name}.node: found 9 NPUs on cards of 2, expected a multiple")):
        us([0] * 8, get_system(name), card=2, node=9)
