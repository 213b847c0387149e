"""The tiny machine as one state: one state number per actor, and a bag of messages."""

from dataclasses import dataclass
from typing import Any

from dysharp.protocol import readiness, reduction
from tests.protocol.checker import actors
from tests.protocol.checker.canon import canonical
from tests.protocol.checker.config import Config, dense_output

State = tuple[int, ...]  # the state number of every actor, then the sorted numbers of the messages in the network
Effect = tuple[int, tuple[int, ...], tuple[int, ...]]  # (new state number, events sent, tokens whose combine is issued)


@dataclass(slots=True)
class Info:
    """Facts about an actor's state that `checker.reduction` reads."""

    internal: tuple[int, ...]
    """Internal events that are possible."""
    retry: bool = False
    done: bool = False
    issued: bool = False
    harmless: bool = False
    """Whether every message to the actor commutes with every other step (see `reduction`)."""
    waits: frozenset[tuple[str, int]] = frozenset()
    """(kind, token) of the packets that wait in a hub."""
    told: frozenset[tuple[int, int]] = frozenset()
    """(token, expert) of the notices that an OR table has counted."""


class Map:
    """Relations between actors and tokens, by number. `experts[token]`: (hub, expert)."""

    def __init__(self, config: Config) -> None:
        tokens = range(len(config.tokens))
        self.source = [t.source for t in config.tokens]
        self.experts = [[(config.hub_of(e), e) for e in t.experts] for t in config.tokens]
        self.hubs_of = [sorted({hub for hub, _ in pairs}) for pairs in self.experts]
        self.port = [config.gpus + config.port_of(t) for t in tokens]
        self.tokens_of_hub = [[t for t in tokens if hub in self.hubs_of[t]] for hub in range(config.gpus)]
        self.tokens_of_source = [[t for t in tokens if self.source[t] == gpu] for gpu in range(config.gpus)]
        ports = range(config.gpus * config.planes)
        self.tokens_of_port = [[t for t in tokens if config.port_of(t) == q and config.remote(t)] for q in ports]


class CheckedMachine:
    """Numbers for the states of actors and for events. The effect of every step is computed once."""

    def __init__(self, config: Config, merge: bool = True) -> None:
        g, n = config.gpus, len(config.tokens)
        self.config, self.merge, self.map = config, merge, Map(config)
        self.hub0, self.port0, self.or0 = 0, g, g + g * config.planes
        self.dispatch0 = self.or0 + g
        self.combine0 = self.dispatch0 + n
        self.n_actors = self.combine0 + n
        self.states: list[list[Any]] = [[] for _ in range(self.n_actors)]
        self._number: list[dict[Any, int]] = [{} for _ in range(self.n_actors)]
        self.info: list[list[Info]] = [[] for _ in range(self.n_actors)]
        self.events: list[Any] = []
        self.actor_of: list[int] = []
        self.mark: list[tuple[Any, ...]] = []  # (kind, token, place) of a message
        self._event_number: dict[tuple[int, actors.Event], int] = {}
        self._effects: dict[tuple[int, int], Effect | None] = {}
        self._issued: list[tuple[int, tuple[int, ...]]] = []

    # ---- start and end -------------------------------------------------------------------------------------

    def initial(self) -> State:
        """The state after the issue of all dispatches. The network may deliver their packets at any time."""
        config, bag, numbers = self.config, [], []
        numbers += [self._state(self.hub0 + g, actors.make_hub(config, g)) for g in range(config.gpus)]
        port: actors.Port = reduction.empty(config.reduction_entries)
        numbers += [self._state(self.port0 + q, port) for q in range(config.gpus * config.planes)]
        combines: list[actors.Operation] = []
        started = []
        for g in range(config.gpus):
            # Only the source of a token expects its notices. On other GPUs the token counts as ready.
            expected = tuple(len(t.experts) if t.source == g else 0 for t in config.tokens)
            numbers.append(self._state(self.or0 + g, readiness.empty(expected, config.readiness_entries)))
        for t, token in enumerate(config.tokens):
            operation, sent = actors.issue(config, "dispatch", t, actors.waiting_operation(token.dispatch_retries))
            numbers.append(self._state(self.dispatch0 + t, operation))
            bag += [self._message(m) for m in sent]
            combine = actors.waiting_operation(token.combine_retries)
            combines.append(combine)
            issued, sent = actors.issue(config, "combine", t, combine)
            self._issued.append((self._state(self.combine0 + t, issued), tuple(self._message(m) for m in sent)))
            started.append(not token.experts)
        numbers += [self._issued[t][0] if started[t] else self._state(self.combine0 + t, combine) for t, combine in enumerate(combines)]
        return (*numbers, *sorted(bag))

    def verdict(self, state: State) -> str | None:
        """The fault of a state without successors. None: all tokens are combined, and no table or message is left."""
        parts, bag = self.parts(state), state[self.n_actors :]
        waiting = [f"combine of token {t}" for t, c in enumerate(parts[self.combine0 :]) if not c.done]
        waiting += [f"dispatch of token {t}" for t, d in enumerate(parts[self.dispatch0 : self.combine0]) if not d.done]
        if waiting or bag:
            return f"deadlock: {', '.join(waiting + [str(self.events[m]) for m in bag])} can never go on"
        output, expected = self.output(state), dense_output(self.config)
        if output != expected:
            return f"wrong tensor: found {output}, expected {expected}"
        for hub in parts[: self.port0]:
            if len(hub.al.pending) or len(hub.open) or len(hub.tiles.on_chip) or len(hub.tiles.memory):
                return f"leak: a hub ends with {hub.al.pending}, {hub.open}, {hub.tiles.on_chip}, {hub.tiles.memory}"
        left = [str(port.table) for port in parts[self.port0 : self.or0] if len(port.table)]
        return f"leak: a port ends with {', '.join(left)}" if left else None

    def output(self, state: State) -> tuple[int | None, ...]:
        """The combined value of every token."""
        return tuple(combine.result for combine in self.parts(state)[self.combine0 :])

    def parts(self, state: State) -> list[Any]:
        """The state of every actor."""
        return [states[number] for states, number in zip(self.states, state, strict=False)]

    # ---- steps ---------------------------------------------------------------------------------------------

    def effect(self, number: int, event: int) -> Effect | None:
        """The effect of `event` on its actor in state `number`. None: the event cannot happen yet."""
        key = (number, event)
        if key not in self._effects:
            self._effects[key] = self._compute(self.actor_of[event], number, self.events[event])
        return self._effects[key]

    def after(self, state: State, event: int, effect: Effect) -> State:
        """The state after `event` with `effect`."""
        numbers, bag = list(state[: self.n_actors]), list(state[self.n_actors :])
        new, sent, ready = effect
        numbers[self.actor_of[event]] = new
        if event in bag:
            bag.remove(event)
        bag += sent
        for token in ready:
            numbers[self.combine0 + token], more = self._issued[token]
            bag += more
        bag.sort()
        return (*numbers, *bag)

    def name(self, event: int) -> str:
        """An event in words."""
        return " ".join(str(part) for part in self.events[event])

    def _compute(self, actor: int, number: int, event: Any) -> Effect | None:
        config, before = self.config, self.states[actor][number]
        ready: list[int] = []
        sent: list[actors.Message] = []
        after: Any
        if actor < self.port0:
            result = actors.hub_step(config, actor, before, event)
            if result is None:
                return None
            after, sent = result
        elif actor < self.or0:
            after, sent = actors.port_step(config, before, event)
        elif actor < self.dispatch0:
            after, ready = actors.or_step(config, before, event)
        else:
            kind = "dispatch" if actor < self.combine0 else "combine"
            after, sent = actors.operation_step(config, kind, before, event)
        return self._state(actor, after), tuple(self._message(m) for m in sent), tuple(ready)

    # ---- numbers -------------------------------------------------------------------------------------------

    def _state(self, actor: int, state: Any) -> int:
        known = self._number[actor]
        key = canonical(state) if self.merge else state
        if key not in known:
            known[key] = len(known)
            self.states[actor].append(state)
            self.info[actor].append(self._info(actor, state))
        return known[key]

    def _event(self, actor: int, event: actors.Event) -> int:
        key = (actor, event)
        if key not in self._event_number:
            self._event_number[key] = len(self.events)
            self.events.append(event)
            self.actor_of.append(actor)
            self.mark.append((*event[:2], *event[3:4]))
        return self._event_number[key]

    def _message(self, message: actors.Message) -> int:
        kind, token, _, place, _, _ = message
        if kind in ("data", "ask"):
            actor = self.hub0 + self.config.hub_of(place)
        elif kind in ("request", "response"):
            actor = self.port0 + self.config.port_of(token)
        elif kind == "note":
            actor = self.or0 + self.config.tokens[token].source
        else:
            actor = (self.dispatch0 if kind == "ack" else self.combine0) + token
        return self._event(actor, message)

    def _info(self, actor: int, state: Any) -> Info:
        if actor < self.port0:
            own = [("answer", key) for key in state.al.pending] + [("gemm", tile) for tile in state.work]
            return Info(tuple(self._event(actor, event) for event in own), waits=frozenset((kind, token) for kind, token, _ in state.open))
        if actor < self.or0:
            expiring = state.table if self.config.timeouts else ()
            return Info(tuple(self._event(actor, ("expire", session)) for session in expiring))
        if actor < self.dispatch0:
            return Info((), told=frozenset((t, e) for table in (state.on_chip, state.memory) for t, es in table.items() for e in es))
        of_dispatch, token = actor < self.combine0, (actor - self.dispatch0) % len(self.config.tokens)
        retries = self.config.tokens[token].dispatch_retries if of_dispatch else self.config.tokens[token].combine_retries
        retry, issued = actors.can_retry(state), state.done or len(state.pieces.open) > 0
        return Info(
            (self._event(actor, ("retry", token)),) if retry else (), retry, state.done, issued, harmless=state.done or (issued and retries == 0)
        )
