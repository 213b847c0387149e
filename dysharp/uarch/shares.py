"""Shares of pools: issuers that hold no more than a number of slots together, which may change (oracle/issue.py)."""

from dysharp.uarch import columns as col
from dysharp.uarch.kernel import block
from dysharp.uarch.ready import mark


@block
def share_left(queue, points):
    """Slots that a queue's share leaves; without a share a number larger than any pool."""
    if points is not None and len(points.shares) > 0 and points.share_of[queue] >= 0:
        share = points.share_of[queue]
        return max(0, points.shares[share, col.SHARE_MOST] - points.shares[share, col.SHARE_HELD])
    return col.INF


@block
def share_take(queue, n, points):
    """A queue takes n slots (below 0: gives them back)."""
    if points is not None and len(points.shares) > 0 and points.share_of[queue] >= 0:
        points.shares[points.share_of[queue], col.SHARE_HELD] += n


@block
def splits_apply(o, issue, x, points):
    """Op o is done: shares change that wait for this end."""
    if points is not None and len(points.splits) > 0 and points.split_of[o] >= 0:
        k = points.split_of[o]
        while k < len(points.splits) and points.splits[k, col.SPLIT_OP] == o:
            share = points.splits[k, col.SPLIT_SHARE]
            if points.splits[k, col.SPLIT_MORE] != 0:
                points.shares[share, col.SHARE_MOST] += points.splits[k, col.SPLIT_MORE]
            else:
                points.shares[share, col.SHARE_MOST] = points.splits[k, col.SPLIT_MOST]
            for queue in range(len(points.share_of)):
                if points.share_of[queue] == share:
                    mark(issue.dirty_issuers, x, issue.issuers[queue, col.ISSUER_OWNER])
            k += 1
