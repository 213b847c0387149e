"""Automatic windows: what is under way fits the published tables."""

import pytest

import dysharp as ds
from dysharp.systems.building.windows import PUBLISHED_ROWS, Flow


def test_a_copy_for_several_experts_takes_as_many_entries() -> None:
    one, four = (Flow(96.0, 14.0, 1.2, 2.2, PUBLISHED_ROWS, 128, rows).windows(together=True) for rows in (1.0, 4.0))
    assert four[0] < one[0]
    alone = {Flow(96.0, 14.0, 1.2, 2.2, PUBLISHED_ROWS, 128, rows).windows(together=False) for rows in (1.0, 4.0)}
    assert len(alone) == 1


@pytest.mark.parametrize("system", ["dysharp", "sync-dysharp"])
def test_the_levels_agree_where_a_token_has_four_experts_on_a_gpu(system: str) -> None:
    """With a window of copies the AL TLB lost rows before their packets came: 317 us at packet level, 62 at burst level."""
    burst, packet = (ds.run(system, model="S-32", gpus=8, tokens=256, routing="uniform", fidelity=level) for level in ("burst", "packet"))
    assert packet.time_us == pytest.approx(burst.time_us, rel=0.03)
