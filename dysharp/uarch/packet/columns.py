"""Names of the columns of the packet fabric's state (docs/design/0006)."""

# packet: one record of a cache line, int32 [n_slots, 16] and the same memory as int64 [n_slots, 8]
PK_KIND, PK_OP, PK_CHUNK, PK_FLITS, PK_LINK, PK_VC, PK_LEFT, PK_NEXT = range(8)
PT_DUE = 4  # in the int64 view: when it leaves its ring
PK_NEXT2, PK_MEMBER, PK_OUT, PK_ACKS, PK_PARENT, PK_OFLITS = range(10, 16)
# FLITS: on the up link, so in the input buffer; OFLITS: on the link it leaves the switch by; LINK: the up link it came by; OUT: the down link
# it leaves by; LEFT: copies still to leave the buffer; NEXT: ring, VC FIFO, egress FIFO; NEXT2: output queue and ring of busy outputs;
# ACKS: acknowledgements or contributions missing (a multicast or session), lookups missing (in a hub), targets in it (result, partial sum)

# kinds of packets
DATA, MDATA, MCOPY, REQ, MREQ, RCOPY, RESP, CONTRIB, ACK, ACKPART, MACK, RESULT, PARTIAL, BYPASS, NOTE, PLAIN = range(16)
# store, multicast, its copy, request, request to a set, its copy, response, response to be summed, acknowledgement of a store, of a copy,
# merged acknowledgement, sum, partial sum, response that passes by, notification, synthetic packet

# link, int64 [n_links, 20]: the up direction of link l of GPU g is row g * links_per_gpu + l, and an input port of its switch
(
    LK_NODE, LK_PLANE, LK_S, LK_FREE, LK_MASK, LK_CURSOR, LK_LANES, LK_NEXT, LK_DUE, LK_FLITS, LK_BLOCKED, LK_PS_CREDIT, LK_FETCH, LK_PS_FETCH,
    LK_ANSWERS, LK_FULL_FLITS, LK_PEAK, LK_WAITS,
) = range(18)  # fmt: skip
# S: number among the inputs of its plane; FREE: 1 = idle; MASK: egress queues with something; LANES: crossbar lanes free; BLOCKED: since when
# it waits for a credit (-1 = not), FETCH: likewise for a target list; PS_*: sums of both; ANSWERS: requests whose answer has not left;
# FULL_FLITS, PEAK: flits in the input buffer now and at most

# output, int64 [2 * n_links, OC_COLUMNS]: the down direction of a link, then the reduction unit of the same port
OC_FREE, OC_GROUP, OC_FLITS, OC_SENDING, OC_BLOCKED, OC_PS_HUB, OC_HEAD, OC_TAIL, OC_NEXT, OC_DUE, OC_INPUT0 = range(11)
# FREE: crossbar lanes into it; GROUP: last served; SENDING: packet on the link, -1 = none; HEAD, TAIL: packets behind it; NEXT, DUE: ring of
# sending links; BLOCKED: since when only the hub's buffer stops it; INPUT0 + group: last input served
MAX_GROUPS = 9
OC_COLUMNS = OC_INPUT0 + MAX_GROUPS

# wire, int64 [n_wires, 12]: packets of one train; *_H flits besides data
PW_PACKETS, PW_PAYLOADS, PW_FULL, PW_LAST, PW_AUX, PW_AUX_LAST, PW_UP_H, PW_DOWN_H, PW_ACK, PW_SOURCE_ACK, PW_RESULT_H, PW_DYNAMIC = range(12)

# constants, int64
(
    C_LINKS, C_TOTAL, C_GROUPS, C_VPG, C_PORTS, C_LAT, C_CYCLE, C_VC_FLITS, C_INGRESS, C_RESPONDER, C_AL, C_AL_MISS, C_FETCH, C_QUEUE,
    C_TIMEOUT, C_STRIPE, C_CLASSES, C_ACK_GROUP, C_NOTE_GROUP, C_SIZES, C_EXT, C_PER_PLANE, C_FILLS, C_ANSWERS, C_ROWS, C_MARGIN, C_SLOTS,
    C_NOTE_FLITS, C_LEAF, C_TAIL, C_BANKS, C_BANK_PS,
) = range(32)  # fmt: skip
# LINKS per GPU, TOTAL of them; VPG: VCs per group; PORTS: inputs of a plane; TAIL: ps from the last flit's start to its arrival; BANKS of the AL TLB,
# BANK_PS: a bank takes a lookup in so often
STRIPE_ROTATING, STRIPE_EVEN, STRIPE_HASH = range(3)

# run state beyond the burst columns, int64
(
    X_FREE, X_STATUS, X_CREDITS, X_CREDIT_READ, X_IN_FLIGHT, X_PEAK_SLOTS, X_PACKETS, X_NOTES, X_OUT,
) = range(8, 17)  # fmt: skip
X_COUNT = 24
RUNNING, DONE_RUN, GROW = 0, 1, 2  # X_STATUS

# rings, by their place behind the burst level's: FR_UP .. links that become free, FR_ARRIVE .. heads that reach the switch, FR_OUT ..
# outputs that become free, the others one each
FR_CREDIT, FR_CYCLE, FR_DELIVER, FR_AL, FR_RESPOND, FR_TIMEOUT, FR_FIXED = range(7)

# statistics, int64
(
    ST_LOOKUPS, ST_HITS, ST_MISSES, ST_MERGED, ST_FULL, ST_TLB_EVICTIONS, ST_AL_WAITS, ST_SESSIONS, ST_EVICTIONS, ST_PARTIALS, ST_BYPASSES,
    ST_TIMEOUTS, ST_RESULTS, ST_FETCHES, ST_FETCH_WAITS, ST_CREDIT_WAITS, ST_LANE_WAITS, ST_HUB_WAITS, ST_ANSWER_WAITS, ST_PEAK_SESSIONS,
    ST_PEAK_MISSES, ST_RELEASED, ST_BUFFERED, ST_RED_AREA, ST_RED_SINCE, ST_AL_AREA, ST_AL_SINCE, ST_BUF_AREA, ST_BUF_SINCE, ST_BUF_NOW,
    ST_MISSES_NOW, ST_SESSIONS_NOW, ST_ALLOCATED, ST_BANK_WAITS, ST_BANK_PS,
) = range(35)  # fmt: skip
ST_COUNT = 40
