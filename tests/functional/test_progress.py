"""What may happen next: semaphores count, and a pull's member answers when its edge has come."""

from __future__ import annotations

from dysharp.functional.progress import Progress
from dysharp.isa.framing import Framing
from dysharp.program import Alloc, Discipline, Hardware, Head, Kind, Program, ProgramBuilder, Tail, Template, To

HARDWARE = Hardware(450_000, 250_000, 500_000, 500_000, 500_000, 500_000, 8, 73_728, 18)


class Heard:
    """Keeps what has become possible."""

    def __init__(self) -> None:
        self.issue: list[int] = []
        self.respond: list[int] = []

    def may_issue(self, op: int) -> None:
        self.issue.append(op)

    def may_respond(self, member: int) -> None:
        self.respond.append(member)

    def tile_notifies(self, tile: int) -> None:
        raise AssertionError(f"tile {tile} has no edges")


def windowed(n: int, capacity: int) -> Program:
    """Node 0 puts `n` rows to node 1; at most `capacity` of them are under way."""
    b = ProgramBuilder(HARDWARE, 2)
    put = b.template(Template("put", Kind.PUT, "dispatch", framing=b.framing(Framing("store"))))
    _, row, _ = b.regions([1], [n], 128, [n], alloc=Alloc.PREFIX)
    b.ops(put, [0] * n, issuer=b.issuer(0, Discipline.READY_FIFO), bytes=128, to=To([1] * n, [1] * n, [1] * n, range(row, row + n)))
    b.hold(b.semaphore(0, capacity), list(range(n)), amount=1)
    return b.build()


def test_no_more_ops_than_the_semaphore_allows() -> None:
    heard = Heard()
    progress = Progress(windowed(4, capacity=2), heard)
    progress.start()
    assert heard.issue == [0, 1, 2, 3]
    assert [progress.try_issue(op) for op in heard.issue] == [True, True, False, False]
    progress.finish(0)
    assert heard.issue[4:] == [2]
    assert progress.try_issue(2)
    assert not progress.try_issue(3)


def test_a_member_answers_when_its_edge_has_come() -> None:
    b = ProgramBuilder(HARDWARE, 2, ("data", "answer"))
    gate = b.ops(b.template(Template("gate", Kind.JOIN, "other")), [1])
    pull = b.template(Template("pull", Kind.PULL_REDUCE, "combine", response_cls=1, framing=b.framing(Framing("store"))))
    b.ops(pull, [0], issuer=b.issuer(0, Discipline.READY_FIFO), bytes=128, to=To([1], [1], [0], []))
    b.edges(Tail.OP_DONE, [gate], Head.MEMBER_RESPOND, [0])
    heard = Heard()
    progress = Progress(b.build(), heard)
    progress.start()
    assert not progress.responds_freely(0)
    progress.finish(gate)
    assert heard.respond == [0]
    assert progress.responds_freely(0)
