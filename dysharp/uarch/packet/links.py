"""The packet fabric: links, switch input buffers with credits, crossbar lanes, outputs, reduction units (docs/design/0006).

One event per packet and hop; the same blocks carry Programs and synthetic traffic. `pk` and `pt` are two views of the packet records,
`lk` the links (up direction and input port), `oc` the outputs (down links, then reduction units), `c` constants.
"""

from dysharp.uarch.columns import INF, X_NOW
from dysharp.uarch.flit.router import lowest
from dysharp.uarch.kernel import block, kernel
from dysharp.uarch.packet.columns import (
    C_EXT,
    C_GROUPS,
    C_INGRESS,
    C_LEAF,
    C_PORTS,
    C_SIZES,
    C_TOTAL,
    C_VC_FLITS,
    C_VPG,
    FR_CREDIT,
    FR_FIXED,
    LK_BLOCKED,
    LK_CURSOR,
    LK_DUE,
    LK_FLITS,
    LK_FREE,
    LK_FULL_FLITS,
    LK_LANES,
    LK_MASK,
    LK_NEXT,
    LK_PEAK,
    LK_PLANE,
    LK_PS_CREDIT,
    LK_S,
    MCOPY,
    OC_BLOCKED,
    OC_DUE,
    OC_FLITS,
    OC_FREE,
    OC_GROUP,
    OC_HEAD,
    OC_INPUT0,
    OC_NEXT,
    OC_PS_HUB,
    OC_SENDING,
    OC_TAIL,
    PK_FLITS,
    PK_KIND,
    PK_LINK,
    PK_NEXT,
    PK_NEXT2,
    PK_OFLITS,
    PK_PARENT,
    PK_VC,
    PT_DUE,
    RCOPY,
    ST_CREDIT_WAITS,
    ST_HUB_WAITS,
    ST_LANE_WAITS,
    X_CREDIT_READ,
    X_CREDITS,
    X_FREE,
    X_OUT,
)
from dysharp.uarch.tree import tree_set


@block
def dirty_mark(dirty, i):
    """Resource i wants a grant attempt at this instant. dirty int64 [1 + words]: which words are not empty, then 64 resources a word."""
    dirty[1 + (i >> 6)] |= 1 << (i & 63)
    dirty[0] |= 1 << (i >> 6)


@block
def dirty_take(dirty):
    """Remove and return the lowest marked resource of a non-empty set."""
    w = lowest(dirty[0])
    word = dirty[1 + w]
    dirty[1 + w] = word & (word - 1)
    if dirty[1 + w] == 0:
        dirty[0] &= dirty[0] - 1
    return (w << 6) + lowest(word)


@block
def words_after(words, row, cursor):
    """Round robin: lowest member above `cursor` of the bit set words[row] [n_words], 64 bits each, else the lowest; -1 if empty."""
    n = words.shape[1]
    found = -1
    at = (cursor + 1) >> 6
    if at < n:
        w = words[row, at] & (-1 << ((cursor + 1) & 63))
        while w == 0 and at + 1 < n:
            at += 1
            w = words[row, at]
        if w != 0:
            found = (at << 6) + lowest(w)
    if found < 0:
        for i in range(n):
            if words[row, i] != 0:
                found = (i << 6) + lowest(words[row, i])
                break
    return found


@block
def slot_take(pool, x):
    """A free packet record."""
    x[X_FREE] -= 1
    return pool[x[X_FREE]]


@block
def slot_free(p, pool, x):
    """Packet record p is free again."""
    pool[x[X_FREE]] = p
    x[X_FREE] += 1


@block
def ring_put(r, p, due, column, pk, pt, fr, tree, c):
    """Packet p leaves ring r at `due`, not before any packet put there earlier."""
    pt[p, PT_DUE] = due
    pk[p, column] = -1
    if fr[r, 0] < 0:
        fr[r, 0] = p
        tree_set(tree, c[C_LEAF] + r, due)
    else:
        pk[fr[r, 1], column] = p
    fr[r, 1] = p


@block
def link_busy(i, ring, due, lk, fr, tree, c):
    """Link i is free again at `due`."""
    lk[i, LK_FREE] = 0
    lk[i, LK_DUE] = due
    lk[i, LK_NEXT] = -1
    if fr[ring, 0] < 0:
        fr[ring, 0] = i
        tree_set(tree, c[C_LEAF] + ring, due)
    else:
        lk[fr[ring, 1], LK_NEXT] = i
    fr[ring, 1] = i


@block
def links_free(ring, leaf, now, lk, du, fr, tree):
    """The links of a ring that are due now are free again; those with something to send are looked at."""
    i = fr[ring, 0]
    while i >= 0 and lk[i, LK_DUE] == now:
        lk[i, LK_FREE] = 1
        if lk[i, LK_MASK] != 0:
            dirty_mark(du, i)
        i = lk[i, LK_NEXT]
    fr[ring, 0] = i
    tree_set(tree, leaf, lk[i, LK_DUE] if i >= 0 else INF)


@block
def level_change(by, now, st, area, since, current, peak):
    """A level changes by `by`: its area, last change, value and peak are these columns of `st` (for its mean and maximum)."""
    st[area] += st[current] * (now - st[since])
    st[since] = now
    st[current] += by
    if st[current] > st[peak]:
        st[peak] = st[current]


@kernel
def vc_find(i, group, flits, occ, c):
    """The least occupied VC of `group` at input port i if the packet fits as a whole or the VC is empty, else -1 (infinite buffers: its first)."""
    first = group * c[C_VPG]
    if c[C_VC_FLITS] == 0:
        return first
    best = first
    for v in range(first + 1, first + c[C_VPG]):
        if occ[i, v] < occ[i, best]:
            best = v
    if occ[i, best] > 0 and occ[i, best] + flits > c[C_VC_FLITS]:
        return -1
    return best


@kernel
def link_send(i, q, p, vc, ext, late, due, pk, pt, lk, occ, fr, tree, dur, c, x):
    """Packet p starts on link i from egress queue q towards VC `vc`; its head is routed `late` after, behind `ext` extension flits.

    `due`: time from the start to the end of its last flit.
    """
    flits = pk[p, PK_FLITS]
    now = x[X_NOW]
    if lk[i, LK_BLOCKED] >= 0:
        lk[i, LK_PS_CREDIT] += now - lk[i, LK_BLOCKED]
        lk[i, LK_BLOCKED] = -1
    lk[i, LK_CURSOR] = q
    lk[i, LK_FLITS] += flits
    pk[p, PK_LINK] = i
    pk[p, PK_VC] = vc
    occ[i, vc] += flits
    lk[i, LK_FULL_FLITS] += flits
    if lk[i, LK_FULL_FLITS] > lk[i, LK_PEAK]:
        lk[i, LK_PEAK] = lk[i, LK_FULL_FLITS]
    link_busy(i, FR_FIXED + flits, now + due, lk, fr, tree, c)
    # rings of arrivals lie behind those of busy links, one per number of extension flits, first plain and then dynamic packets
    ring_put(FR_FIXED + c[C_SIZES] + ext, p, now + late, PK_NEXT, pk, pt, fr, tree, c)


@kernel
def link_blocked(i, lk, x, st):
    """Link i has something to send and no VC has room for any of it."""
    if lk[i, LK_BLOCKED] < 0:
        lk[i, LK_BLOCKED] = x[X_NOW]
        st[ST_CREDIT_WAITS] += 1


@kernel
def out_ask(o, p, s, pk, lk, oq, om, oc, im, do, c):
    """Packet p, at input s of its plane (C_PORTS = the switch itself), asks for output o."""
    group = pk[p, PK_VC] // c[C_VPG]
    at = o * c[C_GROUPS] + group
    row = at * (c[C_PORTS] + 1) + s
    pk[p, PK_NEXT2] = -1
    if oq[row, 0] < 0:
        oq[row, 0] = p
        om[at, s >> 6] |= 1 << (s & 63)
        if s < c[C_PORTS]:
            j = lk[o if o < c[C_TOTAL] else o - c[C_TOTAL], LK_S] * 2 + (1 if o >= c[C_TOTAL] else 0)
            im[pk[p, PK_LINK], j >> 6] |= 1 << (j & 63)
    else:
        pk[oq[row, 1], PK_NEXT2] = p
    oq[row, 1] = p
    if oc[o, OC_FREE] > 0:
        dirty_mark(do, o)


@block
def shares_lane(p, now, pk, pt):
    """Whether p is a copy of a packet of which another copy starts to cross at this instant: the buffer is read once for both."""
    return (pk[p, PK_KIND] == MCOPY or pk[p, PK_KIND] == RCOPY) and pt[pk[p, PK_PARENT], PT_DUE] == now


@block
def has_lane(p, pk):
    """Whether the crossing packet p holds a lane of its input (copies that started together hold one)."""
    return (pk[p, PK_KIND] != MCOPY and pk[p, PK_KIND] != RCOPY) or pk[p, PK_FLITS] == 1


@kernel
def out_pick(o, now, pk, pt, lk, oq, om, oc, held, c, x, st):
    """The packet that output o begins now, or -1: groups round robin, inputs with a free lane round robin. `x[X_OUT]` is its input."""
    n_groups = c[C_GROUPS]
    n_ports = c[C_PORTS]
    group = oc[o, OC_GROUP]
    hub_full = False
    for _ in range(n_groups):
        group = group + 1 if group + 1 < n_groups else 0
        at = o * n_groups + group
        s = words_after(om, at, oc[o, OC_INPUT0 + group])
        first = s
        while s >= 0:
            p = oq[at * (n_ports + 1) + s, 0]
            ok = True
            if s < n_ports and lk[pk[p, PK_LINK], LK_LANES] == 0 and not shares_lane(p, now, pk, pt):
                st[ST_LANE_WAITS] += 1
                ok = False
            elif o < c[C_TOTAL] and held[o, group] > 0 and held[o, group] + pk[p, PK_OFLITS] > c[C_INGRESS]:
                hub_full = True
                ok = False
            if ok:
                oc[o, OC_GROUP] = group
                oc[o, OC_INPUT0 + group] = s
                x[X_OUT] = s
                if oc[o, OC_BLOCKED] >= 0:
                    oc[o, OC_PS_HUB] += now - oc[o, OC_BLOCKED]
                    oc[o, OC_BLOCKED] = -1
                return p
            s = words_after(om, at, s)
            if s == first:
                break
    if hub_full and oc[o, OC_BLOCKED] < 0:
        oc[o, OC_BLOCKED] = now
        st[ST_HUB_WAITS] += 1
    return -1


@kernel
def out_leave(o, p, s, pk, lk, oq, om, im, c):
    """The head p of output o's queue of input s has been taken."""
    n_groups = c[C_GROUPS]
    at = o * n_groups + pk[p, PK_VC] // c[C_VPG]
    row = at * (c[C_PORTS] + 1) + s
    oq[row, 0] = pk[p, PK_NEXT2]
    if oq[row, 0] < 0:
        om[at, s >> 6] &= ~(1 << (s & 63))
        if s < c[C_PORTS]:
            idle = True
            for g in range(n_groups):
                if oq[(o * n_groups + g) * (c[C_PORTS] + 1) + s, 0] >= 0:
                    idle = False
            if idle:
                j = lk[o if o < c[C_TOTAL] else o - c[C_TOTAL], LK_S] * 2 + (1 if o >= c[C_TOTAL] else 0)
                im[pk[p, PK_LINK], j >> 6] &= ~(1 << (j & 63))


@block
def line_send(o, p, now, pk, oc, fr, tree, dur, c):
    """Packet p starts on the down link o; rings of sending links lie behind those of crossings."""
    flits = pk[p, PK_OFLITS]
    oc[o, OC_SENDING] = p
    oc[o, OC_DUE] = now + dur[flits]
    oc[o, OC_NEXT] = -1
    r = FR_FIXED + 2 * c[C_SIZES] + c[C_EXT] + flits
    if fr[r, 0] < 0:
        fr[r, 0] = o
        tree_set(tree, c[C_LEAF] + r, now + dur[flits])
    else:
        oc[fr[r, 1], OC_NEXT] = o
    fr[r, 1] = o


@block
def out_begin(o, p, s, now, pk, pt, pq, lk, oc, held, fr, tree, dur, c):
    """Packet p crosses to output o: a lane of its input and one of the output are busy; the link takes it when those before it are gone."""
    flits = pk[p, PK_OFLITS]
    oc[o, OC_FREE] -= 1
    oc[o, OC_FLITS] += flits
    if s < c[C_PORTS]:
        shared = shares_lane(p, now, pk, pt)
        if pk[p, PK_KIND] == MCOPY or pk[p, PK_KIND] == RCOPY:
            pk[p, PK_FLITS] = 0 if shared else 1
            pt[pk[p, PK_PARENT], PT_DUE] = now
        if not shared:
            lk[pk[p, PK_LINK], LK_LANES] -= 1
    ring_put(FR_FIXED + c[C_SIZES] + c[C_EXT] + flits, p, now + dur[flits], PK_NEXT2, pk, pt, fr, tree, c)
    if o < c[C_TOTAL]:
        held[o, pk[p, PK_VC] // c[C_VPG]] += flits
        pq[p] = -1
        if oc[o, OC_SENDING] < 0:
            line_send(o, p, now, pk, oc, fr, tree, dur, c)
        elif oc[o, OC_HEAD] < 0:
            oc[o, OC_HEAD] = p
            oc[o, OC_TAIL] = p
        else:
            pq[oc[o, OC_TAIL]] = p
            oc[o, OC_TAIL] = p


@block
def line_next(o, now, pk, pq, oc, fr, tree, dur, c):
    """The packet on link o has left; the next one that crossed follows. Returns the one that has left."""
    p = oc[o, OC_SENDING]
    following = oc[o, OC_HEAD]
    oc[o, OC_SENDING] = -1
    if following >= 0:
        oc[o, OC_HEAD] = pq[following]
        line_send(o, following, now, pk, oc, fr, tree, dur, c)
    return p


@block
def lane_back(i, lk, plane_links, im, do, c):
    """A crossbar lane of input i is free: outputs that passed it over try again."""
    lk[i, LK_LANES] += 1
    if lk[i, LK_LANES] == 1:
        for w in range(im.shape[1]):
            word = im[i, w]
            while word != 0:
                j = (w << 6) + lowest(word)
                word &= word - 1
                dirty_mark(do, plane_links[lk[i, LK_PLANE], j >> 1] + (c[C_TOTAL] if j & 1 else 0))


@block
def credit_put(i, vc, flits, due, cr_due, cr_what, fr, tree, c, x):
    """`flits` of VC `vc` of input i are free; its link knows at `due`."""
    mask = len(cr_due) - 1
    if x[X_CREDITS] == x[X_CREDIT_READ]:
        tree_set(tree, c[C_LEAF] + FR_CREDIT, due)
    cr_due[x[X_CREDITS] & mask] = due
    cr_what[x[X_CREDITS] & mask] = (i << 32) | (vc << 24) | flits
    x[X_CREDITS] += 1


@block
def credits_take(now, cr_due, cr_what, lk, occ, du, tree, c, x):
    """All credits that are due."""
    mask = len(cr_due) - 1
    at = x[X_CREDIT_READ]
    while at < x[X_CREDITS] and cr_due[at & mask] <= now:
        what = cr_what[at & mask]
        i = what >> 32
        occ[i, (what >> 24) & 255] -= what & 0xFFFFFF
        lk[i, LK_FULL_FLITS] -= what & 0xFFFFFF
        if lk[i, LK_FREE] == 1 and lk[i, LK_MASK] != 0:
            dirty_mark(du, i)
        at += 1
    x[X_CREDIT_READ] = at
    tree_set(tree, c[C_LEAF] + FR_CREDIT, cr_due[at & mask] if at < x[X_CREDITS] else INF)
