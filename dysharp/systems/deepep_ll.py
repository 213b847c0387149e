"""DeepEP low-latency kernels: a message per (token, expert) into fixed slots, count words behind it, no barrier."""

from dysharp.base import ByName, ConfigError
from dysharp.costs.transfer import ll_grid
from dysharp.program import I32, Discipline, frozen
from dysharp.systems import BOTH_FORMS, BY_TYPE, HOPPER_ON, Costs, Facts, Form, Layer, Moves, Reach, Ships, Shown, kernels
from dysharp.systems.building import ROWS_OR_FP8, Kernels, Sends
from dysharp.systems.building.ways import NicOnly, Ways

PEERS = ("nvlink", "nic")
HEADER_BYTES = 16  # header of a message: the index of the token at its source


@frozen
class Options(Form):
    """Options of DeepEP's low-latency kernels.

    | option | meaning |
    |---|---|
    | `form` | "paper", "real" or "auto" (real on hw-* clusters) |
    | `dispatch` | format of rows: "rows" (the model's) or "fp8" (a byte per element and an FP32 scale per 128) |
    | `peers` | "nvlink": messages inside a domain are stores by NVLink; "nic": they go by NIC, too (releases before June 2025) |
    | `compute` | False leaves the GEMMs out: a row is ready when it has arrived |

    The real form adds SMs that cast and send tokens, the pace of SM stores, fences, count words and polls.
    """

    dispatch: str = "rows"
    peers: str = "nvlink"
    compute: bool = True


FACTS = Facts(
    source="https://github.com/deepseek-ai/DeepEP (V1, low latency)",
    options=Options,
    moves=Moves("one_copy_per_expert", formats=ROWS_OR_FP8),
    costs=Costs(
        permutes=0,
        fused=False,
        drops="SMs that cast and send tokens, the pace of their stores, fences, count words and polls (form real has them); launches",
    ),
    reach=Reach(domains=BOTH_FORMS, no_switch=("paper",)),
    shown=Shown("#785EF0"),
    ships=Ships(
        "DeepEP csrc/kernels/launch.cuh: SWITCH_HIDDEN",
        HOPPER_ON,
        BY_TYPE,
        hidden=(2048, 2560, 4096, 5120, 6144, 7168, 8192),
        phases=("decode",),
        phases_source="DeepEP README: low-latency kernels are for inference decoding",
    ),
)


def _begins(layer: Layer, options: Options) -> ByName:
    """Which rows go by NIC."""
    if options.peers not in PEERS:
        raise ConfigError(f"deepep-ll.peers: found {options.peers!r}, expected one of {', '.join(PEERS)}")
    if options.peers == "nic" and layer.cluster.domains == 1:
        raise ConfigError(f'deepep-ll.peers: found "nic" on one NVLink domain of "{layer.cluster.name}", expected a cluster with several in use')
    return {"ways": NicOnly if options.peers == "nic" else Ways}


@kernels("deepep-ll", FACTS, begins=_begins)
class _LowLatency(Kernels):
    """Send and receive parts of both kernels. Times are device times: they contain no launch."""

    def dispatch(self) -> I32:
        """Add Dispatch. Returns `[gpus]` DELAYs: when `[gpu]` is done, all rows of the GPU are packed.

        The grid has ceil(experts / warp groups per SM) SMs. An SM casts a token, then its warps send the messages. All
        warps of a GPU together send at the rate `ll.dispatch_link`.
        """
        token_ps = self.costs.ps("ll.token_us")
        tokens = self.tokens_on_sms(self._grid(), token_ps)
        pace = self.costs.stores_ps(self.sent_bytes + HEADER_BYTES, "ll.dispatch_link")
        puts = self.dispatch_rows(Discipline.READY_FIFO)
        self.paced("dispatch", puts, pace, after=tokens.op[self.p.sent_of_row])
        return self._counts("dispatch", "received", puts, None, token_ps)

    def combine(self, finished: I32) -> None:
        """Add Combine. A GPU returns its rows after `finished[gpu]`.

        The SMs of the grid copy the rows. The source weights and adds them as fast as the stores bring them.
        """
        row = self.model.row_bytes
        copy = self.costs.copy_ps("sm.copy_GBps", row) // self._grid()
        pace = max(copy, self.costs.stores_ps(row, "ARCH.ll_combine_link"))
        puts = self.combine_rows(Discipline.READY_FIFO)
        self.paced("combine", puts, pace, begun=finished)
        self._counts("combine", "combined", puts, finished, 0)

    def _grid(self) -> int:
        """SMs of a kernel."""
        return int(ll_grid(self.cluster.own_gpu, self.routing.placement.n_slots))

    def _counts(self, name: str, ends: str, puts: Sends, after: I32 | None, started_ps: int) -> I32:
        """Add a fence after a GPU's messages, a word per (expert, source) after the fence, a poll at the receiver.

        Returns `[gpus]` the polls. Sending, polling and clearing the words of one expert takes the fraction
        `ll.expert_part` of a flag exchange. `started_ps`: the part of the exchange that the start of the
        first message has already simulated. The flight of the words is simulated, too.
        """
        placement = self.routing.placement
        fence = self.delay(f"{name}.fence", max(0, self.costs.sync_ps - self.visible_ps - started_ps), after=after)
        far = self.ways.far(puts.node, puts.to)
        self.wait_each(fence[puts.node[~far]], puts.op[~far])
        words = round(self.costs.sync_ps * placement.n_slots * self.costs.value("ll.expert_part"))
        poll = self.delay(ends, max(0, self.costs.sync_ps - self.flight_ps) + words)
        self.flags(f"{name}.counts", placement.slots_per_gpu, fence, poll)
        self.wait_each(poll[puts.to[far]], puts.op[far])  # the count follows its rows on one queue pair, without a fence
        return poll
