"""A layer on the runtime API, as the paper's megakernel runs it: Dispatch, GEMMs and Combine overlap.

Source: DySHARP (arXiv 2605.05607), section III (runtime API, token tracker, scheduler). A multicast brings equal bytes
to all targets, so the gate weights of all experts of a token follow its row as (expert, weight) records
(docs/design/0004). The epilogue of GEMM-2 applies the weight of its own expert.
"""

from typing import Final

import numpy as np

from dysharp.base.arrays import Array
from dysharp.base.errors import ConfigError, EmulationMismatch
from dysharp.functional.experts import Experts
from dysharp.functional.runtime import ALIGN, TILE_ROWS, Device, DyMulticastObject, DyMulticastObjectProp, Handle
from dysharp.protocol import readiness
from dysharp.protocol.tracker import Tile

OR_ENTRIES: Final = 1024
RECORD_BYTES: Final = 8  # expert and weight, four bytes each


def megakernel(device: Device, tokens: Array, expert: Array, weight: Array, experts: Experts, *, or_entries: int = OR_ENTRIES) -> Array:
    """One forward MoE layer. Returns `[tokens, hidden]` in the device's dtype; zeros for a token without experts.

    | argument | contents |
    |---|---|
    | `device` | device that runs the layer; it may have run layers before |
    | `tokens` | `[tokens, hidden]` in the device's dtype, rows of whole 16 B vectors; GPUs get runs of equal length |
    | `expert` | `[tokens, topk]` integers, distinct experts of each token, -1 = dropped |
    | `weight` | `[tokens, topk]` gate weights, rounded to int32 (integer devices) or float32 |
    | `experts` | the experts of all GPUs of the device, for rows of `hidden` columns |
    | `or_entries` | tokens in the OR table of a GPU; memory counts further tokens |

    Raises ConfigError for other shapes, dtypes and experts. Raises IsaError for an operand that an instruction refuses,
    such as an expert listed twice. Raises EmulationMismatch with a token whose experts never notify.
    """
    layer = _Layer(device, tokens, expert, weight, experts, or_entries)
    layer.dispatch()
    while layer.compute() or layer.combine() or device.step():
        pass
    device.run()
    return layer.result()


class _Layer:
    """One layer in execution."""

    def __init__(self, device: Device, tokens: Array, expert: Array, weight: Array, experts: Experts, or_entries: int) -> None:
        self.device, self.experts, self.tokens = device, experts, tokens
        self.number, self.scalar = device.number, np.dtype(np.int32 if device.number.is_integer else np.float32)
        self._check(expert, weight)
        self.records = self._records(expert, weight)
        self.targets = [[int(e) for e in row if e >= 0] for row in expert]
        row_bytes = tokens.shape[1] * self.number.bytes + self.records.shape[1] * RECORD_BYTES
        self.obj: DyMulticastObject = device.create(DyMulticastObjectProp(bsize=row_bytes), len(tokens))
        n_active = np.bincount(expert[expert >= 0], minlength=device.n_experts).reshape(device.n_gpus, -1)
        for gpu in range(device.n_gpus):
            self.obj.bind(gpu, n_active[gpu].tolist())
        # The table of a GPU counts for its own tokens only, so tokens of other GPUs expect no notice there.
        homes = np.array([self.obj.home(t) for t in range(len(tokens))])
        self.readiness = [
            readiness.empty(tuple(len(self.targets[t]) if homes[t] == gpu else 0 for t in range(len(tokens))), or_entries)
            for gpu in range(device.n_gpus)
        ]
        self.sums: dict[int, Handle] = {}
        for token, targets in enumerate(self.targets):
            if not targets:
                self._combine(token)

    def _check(self, expert: Array, weight: Array) -> None:
        n, stored = len(self.tokens), self.number.stored
        shape = (n, self.experts.hidden)
        if self.tokens.shape != shape or self.tokens.dtype != stored:
            raise ConfigError(f"megakernel tokens: found {self.tokens.dtype} of shape {self.tokens.shape}, expected {stored} of shape {shape}")
        if expert.ndim != 2 or len(expert) != n or expert.dtype.kind != "i":
            raise ConfigError(f"megakernel expert: found {expert.dtype} of shape {expert.shape}, expected integers of shape ({n}, topk)")
        if weight.shape != expert.shape:
            raise ConfigError(f"megakernel weight: found shape {weight.shape}, expected {expert.shape}")
        if self.experts.n_experts != self.device.n_experts:
            raise ConfigError(f"megakernel experts: found {self.experts.n_experts}, expected the device's {self.device.n_experts}")
        outside = np.argwhere((expert < -1) | (expert >= self.device.n_experts))
        if len(outside):
            token, k = outside[0]
            found = f"expert {expert[token, k]} of token {token}"
            raise ConfigError(f"megakernel expert: found {found}, expected -1 .. {self.device.n_experts - 1}")
        if self.experts.hidden * self.number.bytes % ALIGN:
            raise ConfigError(f"megakernel tokens: found rows of {self.experts.hidden * self.number.bytes} B, expected a multiple of {ALIGN} B")

    def _records(self, expert: Array, weight: Array) -> Array:
        """`[tokens, topk, padded to whole flits]` records: expert id and the bits of its weight."""
        n, topk = expert.shape
        records = np.full((n, -(-topk * RECORD_BYTES // ALIGN) * (ALIGN // RECORD_BYTES), 2), -1, np.int32)
        records[:, :topk, 0] = expert
        records[:, :topk, 1] = weight.astype(self.scalar).view(np.int32)
        return records

    # ---- the four groups of SMs --------------------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Every GPU stores its tokens, each followed by its records."""
        for token, targets in enumerate(self.targets):
            row = np.frombuffer(self.tokens[token].tobytes() + self.records[token].tobytes(), self.number.stored)
            self.device.dymultimem_st(self.obj.home(token), self.obj, self.obj.address(token), row, targets)

    def compute(self) -> bool:
        """Run the tiles that have become ready. False without a ready tile."""
        queue, done = self.device.newly_ready, bool(self.device.newly_ready)
        while queue:
            _, gpu, tile = queue.popleft()
            self._tile(gpu, tile)
        return done

    def _tile(self, gpu: int, tile: Tile) -> None:
        (local, row), n, hidden = tile, self.number, self.experts.hidden
        e = gpu * self.device.experts_per_gpu + local
        rows = slice(row * TILE_ROWS, (row + 1) * TILE_ROWS)
        blocks = self.obj.memory(gpu, 0, local)[rows]
        records = np.ascontiguousarray(blocks[:, hidden:]).view(np.int32).reshape(len(blocks), -1, 2)
        mine = np.argmax(records[:, :, 0] == e, axis=1)
        weight = records[np.arange(len(blocks)), mine, 1].view(self.scalar).astype(n.work)
        h = n.store(self.experts.gemm1(e, n.load(blocks[:, :hidden])))
        a = n.store(self.experts.act(e, n.load(h)))
        self.obj.gemm1_done(gpu, tile)
        self.obj.memory(gpu, 1, local)[rows, :hidden] = n.store(weight[:, None] * self.experts.gemm2(e, n.load(a)))
        self.obj.gemm2_done(gpu, tile)

    def combine(self) -> bool:
        """Combine the tokens whose last notice has arrived. False without a ready token."""
        told, done = self.device.told, bool(self.device.told)
        while told:
            gpu, token, expert = told.popleft()
            self.readiness[gpu], outputs = readiness.step(self.readiness[gpu], (token, expert))
            for out in outputs:
                if isinstance(out, readiness.TokenReady):
                    self._combine(out.token)
        return done

    def _combine(self, token: int) -> None:
        at, home = self.obj.address(token), self.obj.home(token)
        self.sums[token] = self.device.dymultimem_ld_reduce(home, self.obj, at, self.experts.hidden, self.targets[token])

    def result(self) -> Array:
        """The output of all tokens. Raises EmulationMismatch with a token whose experts never notified."""
        missing = [t for t in range(len(self.tokens)) if t not in self.sums]
        if missing:
            told = readiness.n_ready(self.readiness[self.obj.home(missing[0])], missing[0])
            raise EmulationMismatch(f"megakernel: found {told} of {len(self.targets[missing[0]])} notices for token {missing[0]}, expected all")
        return np.stack([self.sums[t].value for t in range(len(self.tokens))])
