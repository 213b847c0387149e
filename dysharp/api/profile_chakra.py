"""A measured step as Chakra execution traces: kernels with their times, exchanges as messages between all pairs of ranks.

One rank stands for all where others were not read. Waits for other ranks are left to the reader's simulator.
"""

from pathlib import Path

from dysharp.analysis.timeline.chakra import COMP, RECV, SEND, ChakraNode, write_nodes
from dysharp.api.explaining import Explanation
from dysharp.api.profile_ranks import Rank
from dysharp.base import PS_PER_US, ConfigError
from dysharp.profiles.recognise import WAITING
from dysharp.profiles.spans import causes

NAME = 80
"""Letters of a kernel's name."""


def write_step(done: Explanation, folder: str | Path) -> list[Path]:
    """Write `folder/step.RANK.et` for every rank of the expert group. Raises ConfigError where its exchanges have no sizes."""
    if not done.pair_bytes:
        raise ConfigError("explain: found exchanges without sizes, expected --model and --layout of a run with experts for --chakra")
    ranks = {rank.profile.rank: rank for rank in done.events}
    of = [ranks.get(gpu, done.events[0]) for gpu in range(done.group)]
    return write_nodes(folder, "step", [_nodes_of(rank, gpu, done) for gpu, rank in enumerate(of)], f"measured step, {done.gpu}, {done.passes}")


def _nodes_of(rank: Rank, gpu: int, done: Explanation) -> list[ChakraNode]:
    """Nodes of a GPU in the order of its events: each behind the event before it on its stream, and behind the last that had ended."""
    p, nodes, ends, sent = rank.profile, list[ChakraNode](), list[list[int]](), 0
    before, last = causes(p.start, p.us, p.stream)
    for n, (label, us) in enumerate(zip(rank.labels.tolist(), (p.us - rank.waited).tolist(), strict=True)):
        after = [node for cause in dict.fromkeys((int(before[n]), int(last[n]))) if cause >= 0 for node in ends[cause]]
        words, first = {"is_cpu_op": False, "operator": label or "unknown"}, len(nodes)
        if size := round(done.pair_bytes.get(label, 0.0)):
            for peer in (one for one in range(done.group) if one != gpu):
                for kind, source, to, behind in ((SEND, gpu, peer, after), (RECV, peer, gpu, [])):
                    message = {"comm_size": size, "comm_src": source, "comm_dst": to, "comm_tag": sent}
                    nodes.append(ChakraNode(len(nodes), label, kind, behind, words | message))
            sent += 1
        else:
            took = 0 if label == WAITING else round(us * PS_PER_US)
            nodes.append(ChakraNode(len(nodes), p.names[p.name[n]][:NAME], COMP, after, words | {"duration_ps": took}))
        ends.append(list(range(first, len(nodes))))
    return nodes
