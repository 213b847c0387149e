"""A reduction table that is too small costs what its extra flits cost on the down links of the GPUs that ask, and no more."""

from __future__ import annotations

import numpy as np

from dysharp.engine.packet.fabric import FabricConfig
from dysharp.engine.packet.program import run_packet
from dysharp.specs import load_cluster, load_model
from dysharp.systems import get_system
from dysharp.workload import make_routing

GPUS, SMALL = 4, 16


def extra(tokens: int) -> tuple[float, float]:
    """(time, transmission time of the extra flits at the GPU that gets most of them) of a small table over an infinite one, in us."""
    model, cluster = load_model("S-8"), load_cluster("paper-gh200-nvl32").with_gpus(GPUS)
    routing = make_routing("uniform", model, GPUS, tokens, seed=0, layer=None, placement="auto")
    system = get_system("dysharp")
    options = system.options(dispatch_window=32, combine_window=64, compute=False)
    program = system.plan(model, cluster, routing, "fwd", options)
    planes = cluster.n_switches
    infinite, small = (run_packet(program, FabricConfig(n_planes=planes, reduction_entries=n, al_entries=0)) for n in (0, SMALL))
    assert small.statistics["reduction"]["evictions"] > 0.5 * small.statistics["reduction"]["sessions"]
    up, down = (getattr(small.trace, side) - getattr(infinite.trace, side) for side in ("up_busy", "down_busy"))
    assert not up.any()  # nothing is asked for or sent twice: a session that left only moves its sum to the source
    counted = sum(small.statistics["flits"]["down"].values()) - sum(infinite.statistics["flits"]["down"].values())
    assert down.sum() == counted * program.hardware.flit
    assert small.trace.time_ps >= np.max(small.trace.down_busy) * 1_000_000 // program.hardware.rate
    return (small.trace.time_ps - infinite.trace.time_ps) / 1e6, float(np.max(down)) / program.hardware.rate


def test_evictions_cost_at_most_their_flits_and_all_of_them_once_the_link_is_full() -> None:
    """A short run hides part of them where its down links idle; what 128 more tokens add is within 15 % of the flits that these add."""
    (short_us, short_flits_us), (long_us, long_flits_us) = extra(128), extra(256)
    print(f"128 tokens: +{short_us:.2f} us of {short_flits_us:.2f}; 256 tokens: +{long_us:.2f} us of {long_flits_us:.2f}")
    assert 0 < short_us <= short_flits_us
    assert 0 < long_us <= long_flits_us
    assert 0.85 <= (long_us - short_us) / (long_flits_us - short_flits_us) <= 1.0
