"""The hub of a GPU at packet level: egress queues per link, ingress with AL TLB and responder (docs/design/0006)."""

from dysharp.uarch.columns import B_FILL, NEXT, WIRE, X_NOW
from dysharp.uarch.kernel import block, kernel
from dysharp.uarch.packet.columns import (
    C_AL_MISS,
    C_ANSWERS,
    C_BANK_PS,
    C_BANKS,
    C_CLASSES,
    C_FILLS,
    C_LEAF,
    C_LINKS,
    C_RESPONDER,
    C_ROWS,
    C_STRIPE,
    C_VPG,
    FR_AL,
    FR_RESPOND,
    LK_ANSWERS,
    LK_FREE,
    LK_MASK,
    LK_WAITS,
    MCOPY,
    OC_FREE,
    PK_ACKS,
    PK_KIND,
    PK_LEFT,
    PK_MEMBER,
    PK_NEXT,
    PK_OFLITS,
    PK_OUT,
    PK_VC,
    PW_PACKETS,
    ST_AL_AREA,
    ST_AL_SINCE,
    ST_AL_WAITS,
    ST_ALLOCATED,
    ST_ANSWER_WAITS,
    ST_BANK_PS,
    ST_BANK_WAITS,
    ST_FULL,
    ST_HITS,
    ST_LOOKUPS,
    ST_MERGED,
    ST_MISSES,
    ST_MISSES_NOW,
    ST_PEAK_MISSES,
    ST_TLB_EVICTIONS,
    STRIPE_HASH,
)
from dysharp.uarch.packet.links import dirty_mark, level_change, ring_put
from dysharp.uarch.packet.switch import mix
from dysharp.uarch.tables import AL_FULL, AL_READ, H_ALLOCATED, H_BANK0, H_CACHED, al_answer, al_lookup
from dysharp.uarch.tree import tree_set

OP_START, OP_UNSENT = 30, 31  # free columns of an op's record: the link of its first packet, packets not sent


@block
def egress_put(i, q, p, pk, lk, eq, du, c):
    """Packet p joins queue q (a number above the classes of ops) of link i."""
    row = i * (c[C_CLASSES] + 2) + q - c[C_CLASSES]
    pk[p, PK_NEXT] = -1
    if eq[row, 0] < 0:
        eq[row, 0] = p
        lk[i, LK_MASK] |= 1 << q
    else:
        pk[eq[row, 1], PK_NEXT] = p
    eq[row, 1] = p
    if lk[i, LK_FREE] == 1:
        dirty_mark(du, i)


@kernel
def chunk_from(o, at, link, op, c):
    """The first packet of op o at or behind number `at` that goes by link number `link` of its GPU."""
    n = c[C_LINKS]
    if c[C_STRIPE] == STRIPE_HASH:
        while mix(op[o, OP_START], at) % n != link:
            at += 1
    else:
        at += (link - op[o, OP_START] - at) % n
    return at


@kernel
def cut_find(i, q, op, hub, cut, pw, c):
    """Class q of link i: its next op and packet stand in `cut` [links * classes, 2]. False if there is none."""
    row = i * c[C_CLASSES] + q
    link = i % c[C_LINKS]
    o = cut[row, 0]
    chunk = cut[row, 1]
    while True:
        if o < 0:
            nxt = hub[i // c[C_LINKS] * c[C_CLASSES] + q, 0]
        elif chunk >= pw[op[o, WIRE], PW_PACKETS]:
            nxt = op[o, NEXT]
        else:
            break
        if nxt < 0:
            cut[row, 0] = o
            cut[row, 1] = chunk
            return False
        o = nxt
        chunk = chunk_from(o, 0, link, op, c)
    cut[row, 0] = o
    cut[row, 1] = chunk
    return True


@block
def misses_change(by, now, st):
    """`by` more misses are under way: for mean and maximum over all hubs."""
    level_change(by, now, st, ST_AL_AREA, ST_AL_SINCE, ST_MISSES_NOW, ST_PEAK_MISSES)


@block
def bank_wait(key, node, hubs, c, x, st):
    """What the lookup of `key` would wait for its bank of the TLB, which takes one in every C_BANK_PS: counted, not charged."""
    bank = H_BANK0 + key % c[C_BANKS]
    wait = hubs[node, bank] - x[X_NOW]
    if wait > 0:
        st[ST_BANK_WAITS] += 1
        st[ST_BANK_PS] += wait
    hubs[node, bank] = max(hubs[node, bank], x[X_NOW]) + c[C_BANK_PS]


@kernel
def hub_lookup(p, node, pk, mem, fill_row, keys, hubs, waiters, al, fr, tree, c, x, st):
    """Packet p asks the AL TLB for each of its rows, from number PK_LEFT on. False: no miss register is free, it has to ask again."""
    k = pk[p, PK_MEMBER]
    first = mem[k, B_FILL]
    allocates = 1 if pk[p, PK_KIND] == MCOPY else 0
    for f in range(first + pk[p, PK_LEFT], mem[k + 1, B_FILL]):
        key = fill_row[f]
        answer = al_lookup(key, p * c[C_FILLS] + f - first, allocates, node, c[C_ROWS], keys, hubs, waiters)
        if answer == AL_FULL:
            pk[p, PK_LEFT] = f - first
            st[ST_FULL] += 1
            return False
        st[ST_LOOKUPS] += 1
        if c[C_BANKS] > 0:
            bank_wait(key, node, hubs, c, x, st)
        if answer >= 0:
            st[ST_HITS] += 1
            continue
        pk[p, PK_ACKS] += 1
        if answer == AL_READ:
            st[ST_MISSES] += 1
            misses_change(1, x[X_NOW], st)
            al[key, 0] = -1
            al[key, 1] = x[X_NOW] + c[C_AL_MISS]
            if fr[FR_AL, 0] < 0:
                fr[FR_AL, 0] = key
                tree_set(tree, c[C_LEAF] + FR_AL, al[key, 1])
            else:
                al[fr[FR_AL, 1], 0] = key
            fr[FR_AL, 1] = key
        else:
            st[ST_MERGED] += 1
    pk[p, PK_ACKS] -= 1
    return True


@kernel
def hub_enter(p, node, pk, mem, fill_row, keys, hubs, waiters, al, stalled, fr, tree, c, x, st):
    """A dynamic packet reaches its hub. True if it goes on at once."""
    pk[p, PK_LEFT] = 0
    pk[p, PK_ACKS] = 1
    if stalled[node, 0] < 0 and hub_lookup(p, node, pk, mem, fill_row, keys, hubs, waiters, al, fr, tree, c, x, st):
        if pk[p, PK_ACKS] > 0:
            st[ST_AL_WAITS] += 1
        return pk[p, PK_ACKS] == 0
    st[ST_AL_WAITS] += 1
    pk[p, PK_NEXT] = -1
    if stalled[node, 0] < 0:
        stalled[node, 0] = p
    else:
        pk[stalled[node, 1], PK_NEXT] = p
    stalled[node, 1] = p
    return False


@kernel
def hub_answer(key, expert, node, n_keys, keys, hubs, waiters, next_free, out, x, st):
    """Memory answers the miss of `key`; out[0] is the first lookup that goes on. True if it bound the key."""
    full = hubs[node, H_CACHED]
    al_answer(key, expert, node, n_keys, keys, hubs, waiters, next_free, out)
    misses_change(-1, x[X_NOW], st)
    if hubs[node, H_CACHED] == full:
        st[ST_TLB_EVICTIONS] += 1
    st[ST_ALLOCATED] += hubs[node, H_ALLOCATED]
    return hubs[node, H_ALLOCATED] == 1


@block
def ingress_leave(p, pk, oc, held, do, c):
    """Packet p leaves the ingress buffer of its hub."""
    o = pk[p, PK_OUT]
    held[o, pk[p, PK_VC] // c[C_VPG]] -= pk[p, PK_OFLITS]
    if oc[o, OC_FREE] > 0:
        dirty_mark(do, o)


@kernel
def request_take(p, pk, pt, lk, oc, held, rq, do, fr, tree, c, x, st):
    """A request may be answered, unless the answers of its link have no room: then it stays in the ingress buffer."""
    o = pk[p, PK_OUT]
    if c[C_ANSWERS] > 0 and lk[o, LK_ANSWERS] >= c[C_ANSWERS]:
        st[ST_ANSWER_WAITS] += 1
        lk[o, LK_WAITS] += 1
        pk[p, PK_NEXT] = -1
        if rq[o, 0] < 0:
            rq[o, 0] = p
        else:
            pk[rq[o, 1], PK_NEXT] = p
        rq[o, 1] = p
        return
    lk[o, LK_ANSWERS] += 1
    ingress_leave(p, pk, oc, held, do, c)
    ring_put(FR_RESPOND, p, x[X_NOW] + c[C_RESPONDER], PK_NEXT, pk, pt, fr, tree, c)
