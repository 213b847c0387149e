"""What is said about options is true: values, where they have an effect, and the warning about those without effect."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

import dysharp
from dysharp.base.errors import ConfigError
from dysharp.engine.packet.fabric import FabricConfig
from dysharp.program import Program
from dysharp.runs.options import EVERYWHERE, FABRIC, FIELDS, PAPER_FORM, REAL_FORM, options_help, options_of
from dysharp.specs import Cluster, load_cluster, load_model
from dysharp.systems import System, all_systems
from dysharp.workload import make_routing

PAPER, REAL = load_cluster("paper-gh200-nvl32").with_gpus(4), load_cluster("hw-gb200-nvl72").with_gpus(4)
SYSTEMS = list(all_systems().values())
OTHER: dict[str, Any] = {
    "n_sm": 8,
    "chunk": 2,
    "permute": False,
    "sides": "two",
    "cast": False,
    "zero_copy": True,
    "buffer_tokens": 64,
    "combine_chunk": 2,
}
"""Another value than the default, for options of the real form."""


def planned(system: System, cluster: Cluster, **options: Any) -> Program:
    model = load_model("S-8")
    return system.plan(model, cluster, make_routing("uniform", model, 4, tokens_per_gpu=8), "fwd", options_of(system, options))


def same(a: Program, b: Program) -> bool:
    return list(leaves(a)) == list(leaves(b))


def leaves(value: Any) -> Iterator[Any]:
    """The numbers and words of a Program, in order."""
    if isinstance(value, np.ndarray):
        yield value.shape, value.tobytes()
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from leaves(getattr(value, field.name))
    elif isinstance(value, Mapping):
        yield from leaves(tuple(value.items()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)
    else:
        yield repr(value)


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda s: s.name)
def test_every_option_is_explained(system: System) -> None:
    for option in options_help(system):
        field = option.name.partition(".")[2]
        assert field in FIELDS
        assert option.effect in (EVERYWHERE, REAL_FORM, PAPER_FORM)
        assert option.values != "-"
        if isinstance(option.value, str):
            assert option.value in option.values.replace(";", ",").split(", ") or option.values.startswith(option.value)


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda s: s.name)
def test_words_are_those_that_the_system_takes(system: System) -> None:
    for option in options_help(system):
        field = option.name.partition(".")[2]
        if not isinstance(option.value, str) or field in ("form", "combine", "peers"):  # peers by NIC need several domains
            continue
        for word in option.values.split(", "):
            planned(system, PAPER, **{field: word})
        with pytest.raises(ConfigError):
            planned(system, PAPER, **{field: "fp3"})


@pytest.mark.parametrize("system", [s for s in SYSTEMS if s.has_real_form], ids=lambda s: s.name)
def test_options_of_the_real_form_change_no_paper_form(system: System) -> None:
    for option in options_help(system):
        field = option.name.partition(".")[2]
        if option.effect == REAL_FORM:
            assert same(planned(system, PAPER), planned(system, PAPER, **{field: OTHER[field]}))
            assert field == "cast" or not same(planned(system, REAL), planned(system, REAL, **{field: OTHER[field]}))


def test_blocks_of_the_fabric_are_explained() -> None:
    assert set(FABRIC) == {f.name for f in dataclasses.fields(FabricConfig)}


def test_an_option_without_effect_is_a_warning() -> None:
    row = dysharp.run("deepep", gpus=4, tokens=8, options={"n_sm": 8})
    text = "deepep.n_sm=8 has no effect: deepep runs in its paper form here, without software costs; hw-* clusters have them"
    assert text in row.warnings
    assert not any("no effect" in warning for warning in dysharp.run("deepep", gpus=4, tokens=8, options={"dispatch": "fp8"}).warnings)


def test_the_range_of_sms_has_one_source() -> None:
    deepep = all_systems()["deepep"]
    for n in (1, 7, 66):
        with pytest.raises(ConfigError, match=f"option deepep.n_sm: found {n}, expected an even number of SMs from 2 to 64"):
            options_of(deepep, {"n_sm": n})
    assert next(o.values for o in options_help(deepep) if o.name == "deepep.n_sm") == "2 to 64 SMs, an even number"


def test_an_option_of_the_family_that_changes_nothing_here_is_refused() -> None:
    """`explicit` asks no AL Table, moe-hub's thread blocks do not poll. Each took any value and gave the same time."""
    values = ("explicit", "al_misses", 32), ("moe-hub", "poll_ns", 50), ("mh-pkt", "store_bytes", 32), ("mh-base", "totals", "known")
    for name, option, value in values:
        system = all_systems()[name]
        assert option in system.inert
        with pytest.raises(ConfigError, match=f"option {name}.{option}: unknown"):
            options_of(system, {option: value})
        assert f"{name}.{option}" not in {one.name for one in options_help(system)}
