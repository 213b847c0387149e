"""Collectives as workloads: shares, least bytes, references, and the words of the command line."""

import numpy as np
import pytest

from dysharp.base.errors import ConfigError
from dysharp.workload.collective import OPERATIONS, Collective, even, parse_collective


def test_shares_of_an_even_collective_add_up_to_its_size() -> None:
    c = even("all-reduce", 1002, 4)
    assert (c.size, c.gpus, c.shares, c.is_even) == (1002, 4, (250, 250, 250, 252), True)


def test_words_of_the_command_line() -> None:
    assert parse_collective("all-gather:2KiB", 2).shares == (1024, 1024)
    assert parse_collective("reduce-scatter-v:1KiB,3KiB", 2, "fp32").shares == (1024, 3072)
    for text, found in (
        ("all-redce:1KiB", "all-reduce"),
        ("all-reduce:1KB", "KiB"),
        ("all-reduce-v:1KiB", "1 shares"),
        ("all-reduce:3B", "whole number of bf16 elements"),
        ("all-reduce:0B", "at least 1 byte"),
    ):
        with pytest.raises(ConfigError, match=found):
            parse_collective(text, 2)


def test_reference_of_three_gpus() -> None:
    ones = [np.full(3, 1.0), np.full(3, 10.0), np.full(3, 100.0)]
    assert Collective("all-reduce", (2, 2, 2)).reference(ones)[1].tolist() == [111, 111, 111]
    assert [v.tolist() for v in Collective("reduce-scatter", (2, 4, 0)).reference(ones)] == [[111], [111, 111], []]
    assert Collective("all-to-all", (2, 4, 0)).reference(ones)[1].tolist() == [1, 1, 10, 10, 100, 100]
    assert Collective("broadcast", (2, 2, 2)).reference(ones)[2].tolist() == [1, 1, 1]
    gathered = Collective("all-gather", (2, 4, 0)).reference([ones[0][:1], ones[1][:2], ones[2][:0]])
    assert gathered[2].tolist() == [1, 10, 10]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_switch_never_needs_more_bytes(operation: str) -> None:
    c = even(operation, 1 << 20, 8)
    alone, helped = c.least_bytes(in_switch=False), c.least_bytes(in_switch=True)
    assert helped[0] <= alone[0]
    assert helped[1] <= alone[1]
    assert even(operation, 64, 1).least_bytes(in_switch=False) == (0, 0)


def test_least_bytes_of_a_ring() -> None:
    assert even("all-reduce", 8000, 8).least_bytes(in_switch=False) == (14000, 14000)
    assert even("all-gather", 8000, 8).least_bytes(in_switch=False) == (7000, 7000)
    assert even("all-gather", 8000, 8).least_bytes(in_switch=True) == (1000, 7000)


def test_a_shorter_collective_keeps_its_proportions() -> None:
    c = Collective("all-gather", (2000, 6000, 0))
    assert c.shorter(4000).shares == (1000, 3000, 0)
