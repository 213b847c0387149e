"""Which steps of a state suffice: a strong stubborn set of actors, and steps that commute with all steps.

Every step belongs to one actor. It takes a message from the bag (or an internal event of the actor), changes this actor
only, and adds messages. (The notice that makes a token ready also issues its combine, an actor without an earlier
step.) So steps of different actors commute and never disable each other.

A set of actors is *closed* if, for every message that may yet reach one of them, the set has an actor that must act
before. The enabled steps of a closed set are a persistent set: every step outside commutes with them and enables no
further step inside. The state graph has no cycle, because every packet is consumed and retries are bounded. So a search
that follows persistent sets alone reaches every terminal state (P. Godefroid, Partial-Order Methods for the
Verification of Concurrent Systems, 1996). It also takes every step that an actor can take from one of its states, so
failed assertions show too.

| message not yet in the bag | actor that must act before |
|---|---|
| request or ask of a combine before its issue | a hub that owes the token a notice; without such a hub the OR table |
| ask of a combine behind the switch | its port |
| response | the hub to which its ask goes, or in which it waits |
| note | the hub of its expert |
| acknowledgement | a hub that has not acknowledged |
| piece | the port, or the hub of the source |
| any message of another attempt | the operation, if it may retry |

The blocks under check promise two rules: a combine waits for all its notices, and a notice comes once. `actors.or_step`
and `actors._compute` assert them. The first step that breaks a rule belongs to an actor outside the closed set. So the
step is possible after the steps inside the set too, and the search meets it.

Two kinds of steps are taken alone and at once:
- A piece or an acknowledgement of an operation that never retries. It adds to a count and a sum, and only pieces and
  acknowledgements change these. A sum does not depend on the order (tests/protocol/test_blocks.py), and no step can
  disable the message.
- A piece or an acknowledgement of an operation that is done. It changes nothing.
"""

from __future__ import annotations

from tests.protocol.checker.machine import CheckedMachine, Effect, State

Steps = list[tuple[int, Effect]]


def enabled(machine: CheckedMachine, state: State) -> Steps:
    """Every step of a state: a message is delivered, or an actor acts on its own."""
    events = list(dict.fromkeys(state[machine.n_actors :]))
    for info, number in zip(machine.info, state, strict=False):
        events += info[number].internal
    actor_of, steps = machine.actor_of, []
    for event in events:
        effect = machine.effect(state[actor_of[event]], event)
        if effect is not None:
            steps.append((event, effect))
    return steps


def reduced(machine: CheckedMachine, state: State) -> Steps:
    """A subset of the enabled steps that suffices to reach every terminal state."""
    steps = enabled(machine, state)
    if len(steps) < 2:
        return steps
    by_actor: dict[int, Steps] = {}
    for step in steps:
        actor = machine.actor_of[step[0]]
        if actor >= machine.dispatch0 and machine.info[actor][state[actor]].harmless:
            return [step]
        by_actor.setdefault(actor, []).append(step)
    if len(by_actor) == 1:
        return steps
    owed, best = _Owed(machine, state), steps
    for actor, own in by_actor.items():
        if len(own) < len(best):
            best = _closed(machine, owed, actor, by_actor, best)
    return best


def _closed(machine: CheckedMachine, owed: _Owed, actor: int, by_actor: dict[int, Steps], best: Steps) -> Steps:
    """The steps of a closed set around `actor` if they are fewer than `best`, otherwise `best`."""
    chosen, queue, steps = {actor}, [actor], []
    while queue:
        actor = queue.pop()
        steps += by_actor.get(actor, [])
        if len(steps) >= len(best):
            return best
        for other in owed.needs(actor, chosen):
            if other not in chosen:
                chosen.add(other)
                queue.append(other)
    return steps


class _Owed:
    """Actors that must act before a message that is not in the bag can reach an actor (the table above)."""

    def __init__(self, machine: CheckedMachine, state: State) -> None:
        self.machine, self.map = machine, machine.map
        self.info = [info[number] for info, number in zip(machine.info, state, strict=False)]
        self.bag = {machine.mark[event] for event in state[machine.n_actors :]}

    def needs(self, actor: int, chosen: set[int]) -> list[int]:
        """Actors that a closed set with `actor` needs. `chosen`: actors that are in the set already."""
        m, needs = self.machine, []
        if actor < m.port0:
            for token in self.map.tokens_of_hub[actor]:
                needs += self._of_hub(actor, token, chosen)
        elif actor < m.or0:
            for token in self.map.tokens_of_port[actor - m.port0]:
                needs += self._of_port(token, chosen)
        elif actor < m.dispatch0:
            for token in self.map.tokens_of_source[actor - m.or0]:
                if not self._issued(token):
                    needs += self._owing(token)
        elif actor < m.combine0:
            needs = [hub for hub in self.map.hubs_of[actor - m.dispatch0] if self._has(hub, "data", actor - m.dispatch0)]
        else:
            needs = self._of_combine(actor - m.combine0, chosen)
        return needs

    def _issued(self, token: int) -> bool:
        return self.info[self.machine.combine0 + token].issued

    def _owing(self, token: int) -> list[int]:
        """Hubs that have not sent all their notices of `token`."""
        announced = self.info[self.machine.or0 + self.map.source[token]].told
        return [hub for hub, e in self.map.experts[token] if (token, e) not in announced and ("note", token, e) not in self.bag]

    def _before_issue(self, token: int, chosen: set[int]) -> int:
        """One actor that must act before the combine of `token` is issued, if possible one in `chosen`."""
        owing = self._owing(token)
        for hub in owing:
            if hub in chosen:
                return hub
        return owing[0] if owing else self.machine.or0 + self.map.source[token]

    def _of_hub(self, hub: int, token: int, chosen: set[int]) -> list[int]:
        m = self.machine
        needs = [m.dispatch0 + token] if self.info[m.dispatch0 + token].retry else []
        if not self._issued(token):
            return [*needs, self._before_issue(token, chosen)]
        if self.info[m.combine0 + token].retry:
            needs.append(m.combine0 + token)
        if ("request", token, -1) in self.bag and hub != self.map.source[token]:
            needs.append(self.map.port[token])
        return needs

    def _of_port(self, token: int, chosen: set[int]) -> list[int]:
        if not self._issued(token):
            return [self._before_issue(token, chosen)]
        combine = self.machine.combine0 + token
        needs = [combine] if self.info[combine].retry else []
        return needs + [h for h in self.map.hubs_of[token] if h != self.map.source[token] and self._has(h, "ask", token)]

    def _of_combine(self, token: int, chosen: set[int]) -> list[int]:
        if not self._issued(token):
            return [self._before_issue(token, chosen)]
        source = self.map.source[token]
        return [self.map.port[token], source] if self._has(source, "ask", token) else [self.map.port[token]]

    def _has(self, hub: int, kind: str, token: int) -> bool:
        """Whether a packet of `token` is on its way to `hub` or waits in `hub`."""
        return (kind, token) in self.info[hub].waits or any((kind, token, e) in self.bag for h, e in self.map.experts[token] if h == hub)
