"""An argument of a wrong type is refused by its name, with one line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dysharp
from dysharp.base.errors import ConfigError
from dysharp.specs.arguments import fitting

Value = bool | int | float | str
FITS: list[tuple[Any, Any, Any]] = [
    (np.int8(4), int, 4),
    (np.float32(0.5), float, 0.5),
    (3, float, 3),
    (None, int | None, None),
    ([1, np.int64(2)], Iterable[int], (1, 2)),
    pytest.param(iter("ab"), Iterable[str], ("a", "b"), id="iterator"),
    (range(1 << 60), Iterable[int], range(1 << 60)),
    ({"a": np.int64(1)}, Mapping[str, Value], {"a": 1}),
    (Path("a"), str | Path, Path("a")),
    (print, Callable[[int], None] | None, print),
    (object, Any, object),
]


@pytest.mark.parametrize(("value", "kind", "found"), FITS, ids=repr)
def test_what_fits(value: Any, kind: Any, found: Any) -> None:
    got = fitting("x", value, kind)
    assert (got, type(got)) == (found, type(found))


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        (True, int, "found True, expected a whole number"),
        (np.array(4), int, "expected a whole number"),
        (10**400, float, "expected a number"),
        ("deepep", Iterable[str], "found 'deepep', expected a list of text"),
        ([1], Iterable[str], "expected a list of text"),
        (5, Iterable[str] | None, "expected a list of text or None"),
        ({1: 2}, Mapping[str, int], "expected a mapping from text to a whole number"),
        ({"a": [1]}, Mapping[str, int], "expected a mapping"),
        (1, Callable[[int], None], "expected a function"),
        (b"x", str, "expected text"),
        (1, bool, "expected True or False"),
    ],
    ids=repr,
)
def test_what_does_not_fit(value: Any, kind: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as found:
        fitting("tokens", value, kind)
    assert str(found.value).startswith("tokens: found ")


@pytest.mark.parametrize(
    "wrong",
    [
        {"routing": 5}, {"placement": None}, {"start": 1.0}, {"slow": True}, {"options": "x"}, {"options": {"n_sm": [1]}}, {"tokens": 10**400},
        {"tokens": 10**13}, {"gpus": 10**30}, {"seed": True}, {"seed": 1 << 63}, {"layer": True}, {"layer": 10**30, "routing": "uniform"},
        {"tokens": np.array(4)}, {"model": 5}, {"cluster": b"x"}, {"progress": 1}, {"workload": 1},
    ],
    ids=repr,
)  # fmt: skip
def test_the_verbs_refuse_wrong_types(wrong: dict[str, Any]) -> None:
    small = {"model": "S-8", "gpus": 2, "tokens": 4} if "workload" not in wrong else {}
    with pytest.raises(ConfigError, match=f"({next(iter(wrong))}.* found|found {next(iter(wrong))})"):
        dysharp.run("deepep", **(small | wrong))  # type: ignore[misc]
    with pytest.raises(ConfigError, match=f"({next(iter(wrong))}.* found|found {next(iter(wrong))})"):
        dysharp.compare(["deepep"], **(small | wrong))  # type: ignore[misc]


def test_other_doors_refuse_wrong_types() -> None:
    for call in (lambda: dysharp.compare("deepep"), lambda: dysharp.run(1), lambda: dysharp.network(seed="a"), lambda: dysharp.make_routing(1)):  # type: ignore[arg-type, call-arg]
        with pytest.raises(ConfigError, match="found"):
            call()
