"""What packets bring and fetch: pieces of token rows, gate weights, sums of expert rows, gate gradients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dysharp.errors import EmulationMismatch
from dysharp.functional.layer import UNBOUND, Tensors
from dysharp.functional.network.tables import Place
from dysharp.functional.network.values import Format, Value
from dysharp.functional.packets.hub import Columns, Hub
from dysharp.functional.packets.instructions import STRIDE, Decoder, Instruction


class Contents:
    """Reads the memory of the GPUs; changes nothing."""

    def __init__(self, tensors: Tensors, decoder: Decoder, hubs: Sequence[Hub], column_of: Columns) -> None:
        self._t, self._decoder, self._hubs, self._column_of = tensors, decoder, hubs, column_of
        self._fmt = Format(tensors.number)

    def payload(self, one: Instruction) -> bytes:
        """What a store brings: a piece of a token, its gate weights, a sum, gate gradients, or a control word."""
        fn, token = one.template.fn, one.token
        if fn == "control":
            return bytes(one.n_bytes)
        if fn != "copy":
            return self._pushed(one)
        if one.weights:
            return self._weights(one)
        if token < 0 or token // self._t.routing.tokens_per_gpu != one.source:
            raise EmulationMismatch(f"op {one.op}: found token {token} read on GPU {one.source}, expected one of its own")
        row: bytes = self._t.tokens[token].tobytes()
        return row[one.first_byte : one.first_byte + one.n_bytes]

    def _weights(self, one: Instruction) -> bytes:
        """Gate weights in the order of the target list (dynamic), else in the order of the router's columns."""
        weights = self._t.weight[max(one.token, 0)]
        if one.dynamic:
            columns = [self._column_of[one.token, slot] for slot in one.targets]
            weights = np.concatenate((weights[columns], np.zeros(len(weights) - len(columns), weights.dtype)))
        return self._fmt.write(weights, one.dtype)

    def _pushed(self, one: Instruction) -> bytes:
        """One GPU's rounded sum of a token's expert rows (fn "row": one of them), or its gate gradients by column."""
        hub, places = self._hubs[one.source], self.pushed_places(one, one.token)
        value = hub.gate_grads(places, hub.columns(one.token, places)) if one.weights else hub.results(places, one.columns)
        return self._fmt.write(value.array, one.dtype)

    def pushed_places(self, one: Instruction, token: int) -> list[Place]:
        """Places of what a push adds up: all rows of `token` on its GPU, or the one row that belongs into its partial row."""
        hub = self._hubs[one.source]
        if one.template.fn != "row":
            return hub.places(token)
        (partial,) = self._decoder.rows((*one.members, one.local)[0])
        row = hub.layout.pushed(partial, token)
        region = hub.layout.region[row]
        if region not in hub.regions:
            raise EmulationMismatch(f"row {row}: found a push from GPU {one.source}, expected one from GPU {hub.layout.node[region]} that holds it")
        if hub.layout.place[row] == UNBOUND:
            raise EmulationMismatch(f"row {row}: found a push from GPU {one.source} before the row was written, expected it after")
        return [(hub.regions.index(region), hub.layout.place[row])]

    def load(self, one: Instruction, gpu: int, places: list[Place], address: int) -> Value:
        """What `gpu` answers to a copy of a pull: the rounded sum of its rows at `places`, or their gate gradients.

        `address`: of the copy; for gate gradients its low bits say where those of `gpu` begin in the target list.
        """
        hub = self._hubs[gpu]
        if not one.weights:
            return hub.results(places, one.columns)
        first = address % STRIDE
        indices = list(range(first, first + len(places))) if one.dynamic else hub.columns(one.token, places)
        return hub.gate_grads(places, indices)
