"""Memory models of ISAs that have no functional machine here: the parts of each instruction, and the order that rules give them.

A part is what nobody sees half done. Parts happen in any order that the rules of the ISA leave, and loads see what is there. What a source leaves
open has no rule, so all orders are allowed. Sources: docs/memory-model.md.
"""

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dysharp.base.values import frozen

ISAS: Mapping[str, Mapping[str, str]] = {
    "multimem": {
        "release": "a releasing red comes behind all earlier stores of its GPU, on every member",
        "location": "stores of one GPU to one block of a member stay in order",
        "alias": "behind fence.alias a load by the unicast alias sees what multicasts brought before",
        "whole": "a scalar is whole; the scalars of a vector are not",
    },
    "ascend": {
        "whole": "a block of 512 B is whole; blocks of one write are not",
        "reserved": "data never hold the value that stands for nothing yet",
    },
    "moe-hub": {
        "visible": "a write is visible before its acknowledgement counts",
        "count": "Ready comes at the threshold of the counter",
    },
    "cais": {
        "freed": "an entry of loads is freed behind the last GPU but the home",
        "partial": "an evicted sum goes home",
        "together": "blocks of a group start when every GPU has registered",
    },
}  # fmt: skip
"""{ISA: {rule: what it says}}."""
INSTRUCTION = re.compile(
    r"(st|rel|red|redc) [xyzw]+([+][xyzw]+)* \d{1,2} @\d+(,\d+)*|ld [xyzw] @\d+(,\d+)* -> \w+|(ldu|ldc) [xyzw] @\d+ -> \w+|poll [xyzw] -> \w+"
    r"|wait [xyzw]( \d{1,2})?|ready \d{1,2}|sync|done|fence[.]alias"
)
"""`xy`: one unit that may be whole, `x+y`: two units of one write. `ldu`: by the unicast alias. `ldc`, `redc`: merged in the switch (CAIS).
`poll`: until it is not `SENTINEL`. `ready`: until so many writes have been acknowledged here. `sync`: registers its group."""
BEHIND = ("sync", "done", "fence.alias")
"""Wait for all own instructions before them."""
BLOCKING, STORES = ("wait", "poll", "ready", *BEHIND), ("st", "rel", "red", "redc")
SENTINEL, COUNTED = 9, "count"
State = dict[tuple[Any, ...], Any]
DONE, TRAPPED = ("done",), ("trap",)


class _Part(NamedTuple):
    """`op` at `gpu`. `digits`: of `value`, that a store changes in its blocks; a load of one block fills `register`."""

    thread: int
    at: int
    op: str
    gpu: int
    blocks: str
    value: int
    digits: tuple[int, ...] = (10, 1)
    register: str = ""


def _parts(isa: str, rules: Collection[str], thread: int, at: int, words: list[str]) -> Iterator[_Part]:
    """Of one instruction."""
    op, places = words[0], next(([int(gpu) for gpu in word[1:].split(",")] for word in words if word[0] == "@"), [thread])
    value = int(next((word for word in words[1:] if word.isdigit()), 1))
    if op not in STORES:
        blocks, register = words[1] if words[1:2] and words[1].isalpha() else "", words[-1] if "->" in words else ""
        yield from (_Part(thread, at, op, gpu, blocks, value, register=register) for gpu in places)
        return
    torn = "whole" in ISAS[isa] and "whole" not in rules
    for unit, gpu in itertools.product(words[1].split("+"), places):
        pieces = [(block, (digit,)) for block in unit for digit in (10, 1)] if torn else [(unit, (10, 1))]
        yield from (_Part(thread, at, op, gpu, blocks, value, digits) for blocks, digits in pieces)
        if isa == "moe-hub":
            yield _Part(thread, at, COUNTED, gpu, unit, 1)


@frozen
class Abstract:
    """A program of an ISA with `rules`. A state holds what is done, memory, registers, counters, and entries of switches."""

    isa: str
    gpus: int
    parts: tuple[_Part, ...]
    rules: frozenset[str]
    begin: Mapping[tuple[Any, ...], int]

    @property
    def start(self) -> State:
        """Nothing is done."""
        return {DONE: frozenset(), **self.begin}

    def after(self, state: State) -> list[State]:
        """All states one step on; none at the end."""
        if TRAPPED in state:
            return []
        found = []
        for i, part in enumerate(self.parts):
            if i not in state[DONE] and self._may(part, state[DONE]):
                found += [{**one, DONE: state[DONE] | {i}} for one in self._done(part, state)]
        for key in [key for key in state if key[0] == "sum"]:  # timeouts and other addresses evict
            found.append(_without(_added(state, key[1:], state[key][0] * ("partial" in self.rules)), key))
        return found

    def hangs(self, state: State) -> bool:
        """Whether a state without a next one is no end."""
        return len(state[DONE]) < len(self.parts)

    def _may(self, part: _Part, done: frozenset[int]) -> bool:
        """Whether nothing of the own GPU must come first."""
        for i, one in enumerate(self.parts):
            if i in done or one.thread != part.thread:
                continue
            same = one.gpu == part.gpu and set(one.blocks) & set(part.blocks)
            if one.at == part.at and part.op == COUNTED != one.op and one.gpu == part.gpu and "visible" in self.rules:
                return False
            if one.at < part.at and (
                one.op in BLOCKING or part.op in BEHIND or (part.op == "rel" and one.op in STORES and "release" in self.rules)
                or (same and "location" in self.rules)
            ):  # fmt: skip
                return False
        return True

    def _done(self, part: _Part, state: State) -> list[State]:
        """The states that `part` may leave; none while it has to wait."""
        seen = state.get(("memory", part.gpu, part.blocks), 0)
        if part.op in STORES:
            return self._summed(part, state) if part.op == "redc" else self._stored(part, state)
        if part.op in BLOCKING:
            return [_read(self._fenced(part, state), part, seen)] * self._ready(part, state, seen)
        if part.op == COUNTED:
            return [{**state, (COUNTED, part.gpu): state.get((COUNTED, part.gpu), 0) + 1}]
        if part.op == "ldc":
            return self._merged(part, state, seen)
        old = state.get(("old", part.gpu, part.blocks), ()) if part.op == "ldu" else ()
        return [_read(state, part, value) for value in {seen, *old}]

    def _stored(self, part: _Part, state: State) -> list[State]:
        if self.isa == "ascend" and "reserved" in self.rules and part.value == SENTINEL:
            return [{**state, TRAPPED: True}]
        for block in part.blocks:
            old = state.get(("memory", part.gpu, block), 0)
            new = sum((part.value if digit in part.digits else old) // digit % 10 * digit for digit in (10, 1))
            state = _added(state, (part.gpu, block), part.value if part.op == "red" else new - old)
        return [state]

    def _summed(self, part: _Part, state: State) -> list[State]:
        """A sum in the switch; with the last GPU but the home it goes home."""
        place, key = (part.gpu, part.blocks), ("sum", part.gpu, part.blocks)
        total, n = state.get(key, (0, 0))
        last = n + 1 == self.gpus - 1
        return [_without(_added(state, place, total + part.value), key) if last else {**state, key: (total + part.value, n + 1)}]

    def _merged(self, part: _Part, state: State, seen: int) -> list[State]:
        """A load in the switch: a hit, if there is an entry, or a miss, because an entry may have been dropped."""
        key = ("entry", part.gpu, part.blocks)
        kept, n = state.get(key, (seen, 0))
        found = [_read({**state, key: (value, times)}, part, value) for value, times in {(seen, 1), (kept, n + 1)}]
        last = self.gpus - 1
        return [_without(one, key) if one[key][1] == last and "freed" in self.rules else one for one in found]

    def _fenced(self, part: _Part, state: State) -> State:
        """Behind a fence the alias sees nothing old any more."""
        if part.op != "fence.alias" or "alias" not in self.rules:
            return state
        return {key: value for key, value in state.items() if key[:2] != ("old", part.gpu)}

    def _ready(self, part: _Part, state: State, seen: int) -> bool:
        """Whether a GPU that waits may go on."""
        if part.op == "ready":
            return bool(state.get((COUNTED, part.gpu), 0) >= (part.value if "count" in self.rules else 1))
        if part.op == "sync":
            return "together" not in self.rules or self._registered(part, state[DONE])
        return part.op in BEHIND or (seen != SENTINEL if part.op == "poll" else seen == part.value)

    def _registered(self, part: _Part, done: frozenset[int]) -> bool:
        """Whether every GPU stands at its own sync of this number."""
        syncs = [[i for i, one in enumerate(self.parts) if (one.op, one.thread) == ("sync", gpu)] for gpu in range(self.gpus)]
        number = syncs[part.thread].index(self.parts.index(part))
        return all(i in done or self._may(self.parts[i], done) for own in syncs for i in own[number : number + 1])


def abstract(isa: str, threads: Sequence[Sequence[str]], rules: frozenset[str], begin: Mapping[tuple[Any, ...], int]) -> Abstract:
    """The program of `threads`, by GPU. `begin`: memory that does not hold 0."""
    texts = ((t, at, text.split()) for t, thread in enumerate(threads) for at, text in enumerate(thread))
    return Abstract(isa, len(threads), tuple(part for t, at, words in texts for part in _parts(isa, rules, t, at, words)), rules, begin)


def _added(state: State, place: tuple[Any, ...], more: int) -> State:
    """Memory at (GPU, block) with `more`; what was there stays in sight of the alias."""
    old = state.get(("memory", *place), 0)
    return {**state, ("memory", *place): old + more, ("old", *place): state.get(("old", *place), frozenset()) | {old}}


def _read(state: State, part: _Part, value: int) -> State:
    key = ("register", part.register)
    return {**state, key: state.get(key, 0) + value} if part.register else state


def _without(state: State, key: tuple[Any, ...]) -> State:
    return {name: value for name, value in state.items() if name != key}
