"""The replay of a step as a Timeline for Perfetto: a row of tracks for every pipeline rank."""

import numpy as np

from dysharp.analysis.timeline.tracks import Slices, Timeline, Track
from dysharp.base import I32, I64
from dysharp.training.graph import Replay

GROUP = "operators"


def step_timeline(done: Replay) -> Timeline:
    """Tracks "compute", "data parallel" and one for each link of a rank; slices are the nodes that take time. Times are picoseconds."""
    graph = done.graph
    tracks: list[Track] = []
    rows: list[tuple[int, int, int, str]] = []
    for queue, nodes in graph.queues.items():
        _, rank, name = queue.split(" ", 2)
        tracks.append(Track(int(rank), GROUP, name))
        rows += [(len(tracks) - 1, round(done.start[n]), round(done.end[n]), graph.nodes[n].name) for n in nodes if graph.duration[n]]
    names = {name: place for place, name in enumerate(dict.fromkeys(row[3] for row in rows))}
    columns = np.asarray([(track, start, end, names[name]) for track, start, end, name in rows], np.int64).reshape(-1, 4)
    empty: I32 = np.full(len(rows), -1, np.int32)
    zeros: I64 = np.zeros(len(rows), np.int64)
    slices = Slices(columns[:, 0].astype(np.int32), columns[:, 1].copy(), columns[:, 2].copy(), columns[:, 3].astype(np.int32), empty, zeros)
    ranks = 1 + max(track.gpu for track in tracks)
    return Timeline(ranks, round(done.makespan), tuple(tracks), tuple(names), slices, (), (), False, ())
