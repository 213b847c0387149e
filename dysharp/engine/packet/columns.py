"""Names of the columns of the packet fabric's state (docs/design/0006)."""

# free columns of the burst level's records
OP_START, OP_UNSENT = 30, 31  # of an op: the link of its first packet, packets not sent
MEMBER_LEFT = 5  # of a member: packets that have not arrived

# packet: one record of a cache line, int32 [n_slots, 16] and the same memory as int64 [n_slots, 8]
PACKET_KIND, PACKET_OP, PACKET_CHUNK, PACKET_FLITS, PACKET_LINK, PACKET_VC, PACKET_LEFT, PACKET_NEXT = range(8)
PACKET_DUE = 4  # in the int64 view: when it leaves its ring
PACKET_NEXT2, PACKET_MEMBER, PACKET_OUT, PACKET_ACKS, PACKET_PARENT, PACKET_OUT_FLITS = range(10, 16)
# FLITS: on the up link, so in the input buffer; OUT_FLITS: on the link it leaves the switch by; LINK: the up link it came by; OUT: the down link
# it leaves by; LEFT: copies still to leave the buffer; NEXT: ring, VC FIFO, egress FIFO; NEXT2: output queue and ring of busy outputs;
# ACKS: acknowledgements or contributions missing (a multicast or session), lookups missing (in a hub), targets in it (result, partial sum)

# kinds of packets
DATA, MDATA, MCOPY, REQ, MREQ, RCOPY, RESP, CONTRIB, ACK, ACKPART, MACK, RESULT, PARTIAL, BYPASS, NOTE, PLAIN, PUSHED, SUM, SUMACK, LOAD, ANSWER = (
    range(21)
)
# store, multicast, its copy, request, request to a set, its copy, response, response to be summed, acknowledgement of a store, of a copy,
# merged acknowledgement, sum, partial sum, response that passes by, notification, synthetic packet; pushed contribution, the sum of such,
# its acknowledgement; load that may merge, its answer by the switch
N_KINDS = 21

# link, int64 [n_links, 18]: the up direction of link l of GPU g is row g * links_per_gpu + l, and an input port of its switch
(
    LINK_NODE, LINK_PLANE, LINK_INPUT, LINK_FREE, LINK_MASK, LINK_CURSOR, LINK_LANES, LINK_NEXT, LINK_DUE, LINK_FLITS,
    LINK_BLOCKED, LINK_PS_CREDIT, LINK_FETCH, LINK_PS_FETCH, LINK_ANSWERS, LINK_FULL_FLITS, LINK_PEAK, LINK_WAITS,
) = range(18)  # fmt: skip
LINK_COLUMNS = 18
# INPUT: number among the inputs of its plane; FREE: 1 = idle; MASK: egress queues with something; LANES: crossbar lanes free; BLOCKED: since when
# it waits for a credit (-1 = not), FETCH: likewise for a target list; PS_*: sums of both; ANSWERS: requests whose answer has not left;
# FULL_FLITS, PEAK: flits in the input buffer now and at most

# output, int64 [2 * n_links, OUTPUT_COLUMNS]: the down direction of a link, then the reduction unit of the same port
(
    OUTPUT_FREE, OUTPUT_GROUP, OUTPUT_FLITS, OUTPUT_SENDING, OUTPUT_BLOCKED, OUTPUT_PS_HUB, OUTPUT_HEAD, OUTPUT_TAIL, OUTPUT_NEXT,
    OUTPUT_DUE, OUTPUT_SHORT, OUTPUT_INPUT0,
) = range(12)  # fmt: skip
# FREE: crossbar lanes into it; GROUP: last served; SENDING: packet on the link, -1 = none; HEAD, TAIL: packets behind it; NEXT, DUE: ring of
# sending links; BLOCKED: since when only the hub's buffer stops it; SHORT: last packet behind it that has gone before the others, -1 = none;
# INPUT0 + group: last input served
MAX_GROUPS = 9
OUTPUT_COLUMNS = OUTPUT_INPUT0 + MAX_GROUPS

# wire, int64 [n_wires, 16]: packets of one train; *_H flits besides data
(
    CUT_PACKETS, CUT_PAYLOADS, CUT_FULL, CUT_LAST, CUT_AUX, CUT_AUX_LAST, CUT_UP_H, CUT_DOWN_H, CUT_ACK, CUT_SOURCE_ACK, CUT_RESULT_H,
    CUT_DYNAMIC, CUT_ANSWER, CUT_ANSWER_LAST, CUT_TOTAL, CUT_TOTAL_LAST,
) = range(16)  # fmt: skip

# constants, int64
(
    C_LINKS, C_TOTAL, C_GROUPS, C_VPG, C_PORTS, C_LAT, C_CYCLE, C_VC_FLITS, C_INGRESS, C_RESPONDER, C_AL, C_AL_MISS, C_FETCH, C_QUEUE,
    C_TIMEOUT, C_STRIPE, C_CLASSES, C_ACK_GROUP, C_NOTE_GROUP, C_SIZES, C_EXT, C_PER_PLANE, C_FILLS, C_ANSWERS, C_ROWS, C_MARGIN, C_SLOTS,
    C_NOTE_FLITS, C_LEAF, C_TAIL, C_BANKS, C_BANK_PS, C_BANK_ENTRIES, C_FIRST,
) = range(34)  # fmt: skip
C_COUNT = 34
# LINKS per GPU, TOTAL of them; VPG: VCs per group; PORTS: inputs of a plane; TAIL: ps from the last flit's start to its arrival; BANKS of the AL TLB,
# BANK_PS: a bank takes a lookup in so often; BANK_ENTRIES: rows in a bank of the row table, 0 = any number, -1 = there is none;
# FIRST: bit set of egress queues that do not wait for their turn, 0 = none
STRIPE_ROTATING, STRIPE_EVEN, STRIPE_HASH = range(3)

# run state beyond the burst columns, int64
(
    RUN_FREE, RUN_STATUS, RUN_CREDITS, RUN_CREDIT_READ, RUN_IN_FLIGHT, RUN_PEAK_SLOTS, RUN_PACKETS, RUN_NOTES, RUN_OUT,
) = range(8, 17)  # fmt: skip
RUN_COLUMNS = 24
RUNNING, GROW = range(2)  # RUN_STATUS

# rings, by their place behind the burst level's: FABRIC_UP .. links that become free, FABRIC_ARRIVE .. heads that reach the switch, FABRIC_OUT ..
# outputs that become free, the others one each
FABRIC_CREDIT, FABRIC_CYCLE, FABRIC_DELIVER, FABRIC_AL, FABRIC_RESPOND, FABRIC_TIMEOUT, FABRIC_FIXED = range(7)

# statistics, int64
(
    ST_LOOKUPS, ST_HITS, ST_MISSES, ST_MERGED, ST_FULL, ST_TLB_EVICTIONS, ST_AL_WAITS, ST_SESSIONS, ST_EVICTIONS, ST_PARTIALS, ST_BYPASSES,
    ST_TIMEOUTS, ST_RESULTS, ST_FETCHES, ST_FETCH_WAITS, ST_CREDIT_WAITS, ST_LANE_WAITS, ST_HUB_WAITS, ST_ANSWER_WAITS, ST_PEAK_SESSIONS,
    ST_PEAK_MISSES, ST_RELEASED, ST_BUFFERED, ST_RED_AREA, ST_RED_SINCE, ST_AL_AREA, ST_AL_SINCE, ST_BUF_AREA, ST_BUF_SINCE, ST_BUF_NOW,
    ST_MISSES_NOW, ST_SESSIONS_NOW, ST_ALLOCATED, ST_BANK_WAITS, ST_BANK_PS, ST_PEAK_ROWS,
    ST_MERGED_LOADS,
) = range(37)  # fmt: skip
ST_COUNT = 40

# session that waits for its timeout, int64 [n_slots, 4]; IDLE_COUNT: its contributions at the last look
IDLE_NEXT, IDLE_DUE, IDLE_COUNT, IDLE_LOOK = range(4)
LOOK_NOT, LOOK_AGAIN, LOOK_TO_FREE = range(3)  # IDLE_LOOK; LOOK_TO_FREE: all has come, the look only frees its packet record

# packet of a sum of pushes in the switch, int64 [n, 3]: its state (SUM_NEW ..), contributions missing, the record of the latest one; records
# are linked by PACKET_PARENT
CHUNK_STATE, CHUNK_LEFT, CHUNK_HEAD = range(3)

# AL entry that is read from memory, int64 [n_rows, 2]; READ_DUE stays: when the entry was read last, 0 = never
READ_NEXT, READ_DUE = range(2)

# kind of an entry of `Units.log`: a request (outcome: the session that left, -1 = none), a response (outcome: RED_*), an expiry
LOG_REQUEST, LOG_RESPONSE, LOG_EXPIRE = range(3)
