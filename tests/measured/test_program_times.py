"""Runs of Programs, shared and in processes."""

from __future__ import annotations

import pickle

from dysharp.base.lazy import import_all
from dysharp.measured.family import _REGISTRY, classify
from dysharp.measured.predictions import ProgramRequest, hashable_constants, program_times
from dysharp.specs.fitted import fitted_values
from tests.measured.csv_lines import ep_line, read


def test_processes_give_the_same_numbers_in_the_same_order() -> None:
    points = [(t, k, kind) for t in (8, 24) for k in (2, 4, 6) for kind in ("ep_dispatch", "ep_combine")]
    lines = [ep_line(f"{kind}-{t}-{k}", t, topk=k, kind=kind) for t, k, kind in points]
    parsed, told = classify(read(*lines)).parsed, []
    assert len(parsed) == len(lines)
    constants = hashable_constants(fitted_values())
    requests = [ProgramRequest(entry.family.program_us, entry.case, constants) for entry in parsed]
    one = program_times(requests, 1, lambda done, total: told.append((done, total)))
    assert one == program_times(requests, 2)
    assert told[-1] == (12, 12)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_processes_can_import_the_function_of_every_family() -> None:
    import_all("dysharp.measured.families")
    forms = {name: one.program_us for name, one in _REGISTRY.items() if one.program_us}
    assert "deepep-internode" in forms
    assert all(pickle.loads(pickle.dumps(form)) is form for form in forms.values())
