"""Prefix caches: hits of a plain LRU, pinned blocks stay, tiers take what is evicted; on public traces where they are at hand."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dysharp.serving.replay.prefixes import PrefixCache, Tier
from dysharp.serving.replay.requests import requests_of
from tests.serving.replay.cases import plain_lru

TRACES = Path(__file__).resolve().parents[4] / "shared" / "data" / "formats" / "requests"


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), max_size=60), st.integers(10, 30))
def test_hits_are_those_of_a_plain_lru(drawn: list[tuple[int, int]], capacity: int) -> None:
    traced = [tuple((family if block < 3 else count, block) for block in range(count)) for family, count in drawn]
    cache = PrefixCache(capacity)
    assert sum(cache.touch(names) for names in traced) == plain_lru(traced, capacity)


@pytest.mark.parametrize(("name", "reuse"), [("conversation", 0.366), ("synthetic", 0.640)])
def test_hits_on_a_public_trace(name: str, reuse: float) -> None:
    """The reuse of an unlimited cache stands in the README beside the trace."""
    file = TRACES / f"mooncake_{name}.jsonl.gz"
    if not file.exists():
        pytest.skip("the trace is not at hand")
    traced = [row.hashes for row in requests_of(str(file)).rows]
    for capacity in (3_000, 1 << 40):
        cache = PrefixCache(capacity)
        own = sum(cache.touch(names) for names in traced)
        assert own == plain_lru(traced, capacity)
    assert own / sum(map(len, traced)) == pytest.approx(reuse, abs=0.001)


def test_pinned_blocks_stay_and_the_tail_goes_first() -> None:
    cache = PrefixCache(4)
    cache.pin((1, 2))
    cache.pin((3, 4))
    assert cache.free == 0
    cache.unpin((3, 4))
    assert cache.free == 2
    cache.hold(1)
    assert cache.hits((3, 4)) == 1  # the head stays
    cache.hold(1)
    assert cache.hits((3,)) == 0
    assert cache.hits((1, 2)) == 2
    assert cache.needs((1, 3)) == 1


def test_a_tier_takes_what_is_evicted_and_gives_it_at_its_rate() -> None:
    host, disk = Tier("host", 2, 10.0), Tier("disk", 9, 100.0)
    cache = PrefixCache(2, 1, (host, disk))
    for names in ((1, 2), (3, 4), (5, 6), (7, 8)):
        cache.touch(names)
    assert list(host.blocks) == [6, 5]
    assert set(disk.blocks) == {1, 2, 3, 4}
    assert cache.below((5, 6), 1000.0) == (2, 1020.0)
    assert cache.below((3, 9), 1000.0) == (1, 1100.0)
    assert cache.below((6, 1), 1000.0) == (2, 1200.0)  # the links are still busy: host to 1030, disk to 1200
    cache.clear()
    assert cache.below((3, 4), 0.0) == (0, 0.0)
