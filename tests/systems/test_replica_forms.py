"""Which copies carry an extension flit that names their local experts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from layers import WIDE, cluster

from dysharp.specs.choices import choices_overridden
from dysharp.systems import get_system
from dysharp.workload import make_routing


@pytest.mark.parametrize("form", ["bitmap", "extension"])
@pytest.mark.parametrize("local", [15, 16, 32, 33])
def test_a_copy_is_extended_where_its_header_has_no_room(form: str, local: int) -> None:
    """A bitmap holds 15 experts of a GPU, three ids hold experts of at most 32; every other copy has one flit more per packet."""
    model, gpus = replace(WIDE, n_experts=2 * local, topk=8), 2
    routing = make_routing("uniform", model, gpus, 12, seed=3)
    system = get_system("dysharp")
    with choices_overridden({"dysharp.replica_form": form}):
        program = system.plan(model, cluster(gpus), routing, "fwd", system.options(compute=False))
    (template,) = [i for i, t in enumerate(program.templates) if t.name == "dispatch" or t.operator == "dispatch"]
    ops = np.flatnonzero(program.ops.template == template)
    members = np.concatenate([np.arange(program.members.ptr[op], program.members.ptr[op + 1]) for op in ops])
    experts = np.diff(program.members.fill_ptr)[members]
    found = np.zeros(len(members), int) if program.members.ext_bytes is None else program.members.ext_bytes[members]
    extended = np.ones(len(members), bool) if form == "extension" or local > 32 else (experts > 3 if local > 15 else np.zeros(len(members), bool))
    assert {True, False} == set((experts > 3).tolist())
    assert (found > 0).tolist() == extended.tolist()
    packets = -(-program.ops.bytes // 128) - (-program.wires.aux[program.ops.wire] // 128)
    owner = np.repeat(np.arange(program.n_ops), np.diff(program.members.ptr))[members]
    assert (found[found > 0] == 16 * packets[owner][found > 0]).all()  # every packet of a train has one
