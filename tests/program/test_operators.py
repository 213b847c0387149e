"""Operators are declared by the Program, and every reader takes their names from it."""

from dataclasses import replace

import pytest

from dysharp.analysis.attribution import critical_path
from dysharp.analysis.count import traffic_bytes
from dysharp.analysis.phases import LastGpu
from dysharp.analysis.waiting import waiting_us
from dysharp.base.errors import ProgramError
from dysharp.engine.burst.run import run_burst
from dysharp.isa.framing import Framing
from dysharp.program import Nature, Operator, Program, ProgramBuilder, Template, To
from dysharp.program.tables import Discipline, Hardware, Kind
from dysharp.program.verify import verify

HARDWARE = Hardware(450_000, 250_000, 500_000, 500_000, 500_000, 500_000, 8, 73_728, 18)
OPERATORS = (Operator("exchange", Nature.COMMUNICATION), Operator("sort", Nature.MEMORY), Operator("launch", Nature.HOST))


def _program(operator: str = "exchange") -> Program:
    """A launch on node 0, then a PUT of 1 KiB to node 1."""
    b = ProgramBuilder(HARDWARE, 2, operators=OPERATORS)
    framing = b.framing(Framing("store", 128, 16))
    start = b.template(Template("kernel", Kind.DELAY, "launch", "delay", tasks=1, duration=b.duration([0, 1_000_000])))
    put = b.template(Template("put", Kind.PUT, operator, "control", framing=framing))
    first = b.ops(start, 0, issuer=b.issuer(0, Discipline.PROGRAM_ORDER, pool=b.pool(0, 1, "host")))
    second = b.ops(put, 0, issuer=b.issuer(0, Discipline.READY_FIFO), bytes=1024, to=To(1, 1))
    b.edges(0, first, 0, second)
    return b.build()


def test_every_output_has_the_declared_operators() -> None:
    program = _program()
    verify(program)
    trace = run_burst(program)[0]
    assert list(LastGpu(program, trace).phases_us()) == ["exchange", "sort", "launch"]
    causes, operators = critical_path(program, trace)
    assert list(operators) == ["exchange", "sort", "launch"]
    assert causes["host"] == operators["launch"] == 1_000_000
    assert traffic_bytes(program, trace) == {"up": {"exchange": 1024, "launch": 0}, "down": {"exchange": 1024, "launch": 0}}
    assert list(waiting_us(program, trace)) == ["exchange", "launch"]


def test_bytes_of_a_memory_operator_do_not_fold() -> None:
    program = _program("sort")
    assert traffic_bytes(program, run_burst(program)[0])["up"] == {"exchange": 0, "launch": 0, "sort": 1024}


@pytest.mark.parametrize(
    ("operators", "found"),
    [
        (OPERATORS[:1], "nature is host"),
        ((*OPERATORS, OPERATORS[0]), '"exchange" twice'),
        (OPERATORS[1:], 'operator "exchange", expected one that the Program declares: sort, launch'),
        ((*OPERATORS, Operator("two words", Nature.HOST)), "a word without blanks"),
    ],
)
def test_a_wrong_declaration_is_refused(operators: tuple[Operator, ...], found: str) -> None:
    with pytest.raises(ProgramError, match=found):
        verify(replace(_program(), operators=operators))
