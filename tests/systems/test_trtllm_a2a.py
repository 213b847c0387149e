"""TensorRT-LLM's one-sided kernels: what one more copy of a token costs."""

from __future__ import annotations

import numpy as np
import pytest
from layers import TINY

from dysharp.specs import load_cluster
from dysharp.systems import get_system
from dysharp.workload import make_routing


@pytest.mark.parametrize(("dispatch", "row_bytes"), [("rows", 1024), ("fp8-plain", 512)])
def test_all_sms_share_the_copies_of_a_token(dispatch: str, row_bytes: int) -> None:
    """A copy takes its bytes over the rate of one SM times the SMs. Results are BF16 rows of 512 values in either case."""
    system, cluster = get_system("trtllm-a2a"), load_cluster("hw-dgx-b200").with_gpus(4)
    options = system.options(form="real", compute=False, dispatch=dispatch)
    program = system.plan(TINY, cluster, make_routing("uniform", TINY, 4, 16), "fwd", options)
    rate_GBps = cluster.fitted["sm.copy_GBps"] * cluster.n_sms
    for name, n_bytes in (("dispatch.token", row_bytes), ("combine.token", 1024)):
        (template,) = [t for t in program.templates if t.name == name]
        by_copies = program.durations[template.duration][1:5]
        assert np.diff(by_copies).tolist() == pytest.approx([1000 * n_bytes / rate_GBps] * 3, abs=1)
        assert by_copies[0] > 1000 * n_bytes / rate_GBps
