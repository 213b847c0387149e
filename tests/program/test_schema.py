"""Buffers and functions are data of a Program; only rooms of the MoE layer know its words."""

from pathlib import Path

import dysharp
from dysharp.systems.building.schema import LAYER_SCHEMA

MAY_KNOW = ("workload", "systems", "functional")
OTHER_MEANINGS = {
    "isa/packets.py": "a field of a packet",
    "specs/hf.py": "a part of names in configs",
    "silicon/rtl/al_tlb.py": "pins",
}


def test_only_rooms_of_the_layer_know_its_regions() -> None:
    package = Path(dysharp.__file__).parent
    knowing = {path.relative_to(package).as_posix() for path in package.rglob("*.py") if '"expert"' in path.read_text()}
    assert {name for name in knowing if name.split("/")[0] not in MAY_KNOW} == set(OTHER_MEANINGS)


def test_functions_read_and_write_declared_buffers() -> None:
    names = {buffer.name for buffer in LAYER_SCHEMA.buffers}
    for function in LAYER_SCHEMA.functions:
        assert {*function.reads, *function.writes} <= names
    assert LAYER_SCHEMA.tiled == {"expert"}
