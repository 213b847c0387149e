"""`merge` with one fault each breaks a rule that holds for every merge."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from dysharp.program import merge as original
from tests.interpreters.mutants import Mutant
from tests.program.merge_checks import all_of_them

SEEDS = range(12)
MERGE = "program.merge"


MUTANTS = (
    Mutant("members.fill_row without its shift", MERGE, "**OWN,", '"row_notify": "op",'),
    Mutant("regions.row_notify without its shift", MERGE, "**OWN,", '"fill_row": "row",'),
    Mutant("holds.sem without its shift", MERGE, '"sem": "semaphore",', ""),
    *(Mutant(f"{name} without its shift", MERGE, f'"{name}": "{name}", ', "") for name in ("template", "issuer", "wire", "chain", "session")),
    Mutant("framing without its shift", MERGE, 't.framing + first["framing"]', "t.framing"),
    Mutant("duration without its shift", MERGE, 't.duration + first["duration"]', "t.duration"),
    Mutant("class of the part", MERGE, " cls=classes[t.cls]", " cls=t.cls"),
    Mutant("response class of the part", MERGE, "response_cls=classes[t.response_cls]", "response_cls=t.response_cls"),
    Mutant("table of the part", MERGE, "table=tables[t.table]", "table=t.table"),
    Mutant("pool of the part", MERGE, "[_mapped(p.issuers.pool, new) for", "[p.issuers.pool for"),
    Mutant("pool of a chain of the part", MERGE, "_mapped(c.pool, new)", "c.pool"),
    Mutant("all points are ops", MERGE, 'np.array([one[sort] for sort in ENDS[name]])[getattr(tables[i], f"{name}_kind")]', 'one["op"]'),
    Mutant("ops of members one too early", MERGE, "column[:-1] + one[sort]", "column[:-1]"),
    Mutant("no op is -1", MERGE, "np.where(column < 0, -1, column + by)", "(column + by)"),
    Mutant("missing columns are 0", MERGE, "RARE.get(name, 0)", "0"),
    Mutant("trains of the first part", MERGE, "max(p.row_trains for p in programs)", "programs[0].row_trains"),
    Mutant("pools stay apart", MERGE, "(*item, seen.get(item, 0))", "(*item, id(p))"),
    Mutant("traffic of one part only", MERGE, "traffic.setdefault(side, {}).update(", "traffic[side] = dict("),
    Mutant("sections of the whole", MERGE, "range(first[sort], end[sort])", "range(0, end[sort])"),
    Mutant("order of the arguments", MERGE, "sorted(parts, key=lambda part: part.label)", "list(parts)"),
    Mutant("order of the edges", MERGE, "np.lexsort((head, tail))", "np.arange(len(head))"),
    Mutant("an edge is lost", MERGE, "np.lexsort((head, tail))", "np.lexsort((head, tail))[:-1]"),
    Mutant("an edge the other way round", MERGE, "tail[order], head[order])])", "head[order], tail[order])])"),
    Mutant("a stream does not wait for ops", MERGE, "np.flatnonzero(~followed)", "np.flatnonzero(followed)"),
    Mutant("a stream does not wait for rows", MERGE, "np.flatnonzero(~read)", "np.flatnonzero(~read)[:0]"),
    Mutant("a stream forgets the part before the last", MERGE, "join[: len(before)])", "join[: len(before)])[:0]"),
    Mutant("the next part does not wait", MERGE, "(Tail.OP_DONE, starts, heads", "(Tail.OP_DONE, starts[:0], heads[:0]"),
)


def broken(mutant: Mutant) -> ModuleType:
    """`program.merge` with the fault."""
    module = ModuleType("broken")
    sys.modules["broken"] = module  # dataclasses look their module up
    exec(compile(mutant.text(), original.__file__, "exec"), module.__dict__)
    module.__dict__.update(Part=original.Part, Cross=original.Cross)
    return module


def fault(mutant: Mutant) -> str:
    merge = broken(mutant).merge
    for seed in SEEDS:
        try:
            all_of_them(merge, seed)
        except Exception as error:  # a mutant may break in any way
            return f"seed {seed}, {type(error).__name__}: {str(error).strip()[:100]!r}"
    return ""


@pytest.mark.slow
def test_merge_itself_is_not_caught() -> None:
    assert fault(Mutant("harmless", MERGE, "listed = [", "listed = [ ")) == ""


@pytest.mark.sampled
@pytest.mark.parametrize(
    "mutant", [pytest.param(m, marks=pytest.mark.slow) if i % 3 else m for i, m in enumerate(MUTANTS)], ids=lambda m: m.name.replace(" ", "-")
)
def test_mutant_is_caught(mutant: Mutant) -> None:
    found = fault(mutant)
    print(found)
    assert found, f"no merge of {len(SEEDS)} broke a rule"
