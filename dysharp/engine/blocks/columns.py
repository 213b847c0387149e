"""Names of the columns of the state blocks. A block is a 2-D integer array; every kernel names its columns from here."""

INF = 1 << 62  # no pending time

# op: one record of 128 B, int32 [n_ops + 1, 32] and the same memory as int64 [n_ops + 1, 16]; row n_ops is spare
# static
TEMPLATE, NODE, WIRE, ISSUER, PRIO, KEY, MEMBER, FLAGS = range(8)
HAS_EDGES, HAS_HOLDS, HAS_RELEASES, HAS_NEXT_TRAIN = 1, 2, 4, 8  # bits of FLAGS
HAS_ISSUED, HAS_DELIVERED, HAS_FIRST_EVENT = 16, 32, 64  # what falls at its issue, at a member's delivery, at a JOIN's first event
HAS_CHAIN = 128
ANY_FLAG, MEMBERS_SHIFT = 7 + HAS_CHAIN, 8  # ANY_FLAG: bits of what waits for the op's end; the bits from MEMBERS_SHIFT on count the op's members
# state
DEPS = 8  # dependencies left
COPIES = 9  # copies still to leave the switch
LEFT = 10  # deliveries (push), results and locals (pull) or tasks (compute) left until done
NEXT = 11  # link: class FIFO -> ARRIVE ring -> VC FIFO -> credit list
NEXT2 = 12  # link: RESULT ring -> reduction unit's FIFO -> RESULT_DELIVERED ring; ACK ring; worklist
VC = 13
CAUSE = 14
ANSWERS = 15  # responses (pull) or tasks not started (compute) left
CANCELS, ANNOUNCED = COPIES, VC  # of a JOIN: edges left until it is cancelled; what a missing announcement counts in DEPS
CANCELLED = 1 << 30  # DEPS of an op that never runs
# times, in the int64 view
READY, ISSUE, START, END, DONE, TAIL, SCRATCH = range(8, 15)  # TAIL: last byte of the train; SCRATCH: due time in a ring

CHAIN, CHAIN_NEXT = 30, 31  # of an op of a chain: the chain, the op behind it (-1 = none)

TOUCH_LINE_2 = 16  # any int32 column of the record's second cache line

# member: one record of 32 B, int32 [n_members + 1, 8] and the same memory as int64 [n_members + 1, 4]
MEMBER_NODE, MEMBER_NEXT, MEMBER_OP, MEMBER_FILL, MEMBER_EXT, MEMBER_WAITS = range(6)
RESPONSE_HELD = 1 << 30  # added to MEMBER_WAITS (edges before the response) when the responder has read its memory
MEMBER_TIME = 3  # in the int64 view

# template, int32 [n_templates, 7]
KIND, CLS, RESPONSE_CLS, TASKS, IS_PULL, DURATION, TABLE = range(7)

# wire, int64 [n_wires, 16]; of a COMPUTE op, WIRE holds its rows instead
WIRE_UP, WIRE_DOWN, WIRE_RESPONSE, WIRE_RESULT, WIRE_ACK_UP, WIRE_ACK_DOWN, WIRE_STRIPE_UP, WIRE_STRIPE_RESPONSE, WIRE_PAYLOAD = range(9)
# packets of a train; on unequal links: whole rounds over the links, packets of the last round, ps of a packet on one link by part
WIRE_PACKETS, WIRE_ROUNDS, WIRE_REST, WIRE_LINK_UP, WIRE_LINK_DOWN, WIRE_LINK_RESPONSE, WIRE_LINK_RESULT = range(9, 16)

# row, int32 [n_rows, 4]
ROW_LEFT, ROW_SLOT, ROW_NOTIFY, ROW_REGION = range(4)

# region, int32 [n_regions, 5]
REGION_NODE, REGION_TILE_ROWS, REGION_ROW0, REGION_TILE0, REGION_USED = range(5)

# tile, int32 [n_tiles, 7]; TILE_SLOT0 .. TILE_SLOT0 + TILE_ROWS are its slots
TILE_LEFT, TILE_NOTIFY_DEPS, TILE_NEXT, TILE_CAUSE, TILE_NODE, TILE_ROWS, TILE_SLOT0 = range(7)
# tile, times, int64 [n_tiles, 2]
TILE_READY, TILE_NOTIFY = range(2)

# node, int64 [n_ports, 32]: one server each way, until when the bandwidth of its memory is promised, and constants of its links;
# the port of node i on net p is p * n_nodes + i, and memory is promised at the ports of net 0
UP, DOWN = 0, 8  # offsets of the two servers
SERVER_FREE, SERVER_BUSY_START, SERVER_BUSY_BYTES, SERVER_DEBT, SERVER_CURSOR, SERVER_MASK, SERVER_WIRE, SERVER_EXTRA = range(8)
# SERVER_MASK: classes with something queued; SERVER_WIRE: wire bytes so far; SERVER_EXTRA: up = blocked since (-1 = not), down = copy being sent

PROMISED = 16
PORT_RATE, PORT_LAT, PORT_ACK, PORT_MESSAGE, PORT_VC_BYTES, PORT_OUTPUT, PORT_NET = range(17, 24)
# of a port whose acknowledgements take turns (PORT_TURNS = 1): sixths of acknowledgements that wait at its hub, class that the up server sent last,
# UP_QUEUED: bytes that queue at its up server;
# of a port with unequal links: when the last of its copies is visible
PORT_TURNS, ACKS_WAIT, UP_CLASS, DOWN_LAST, UP_QUEUED = range(24, 29)
# PORT_MESSAGE: bytes that pass on the up link in the fixed time of one message

# issuer, int64 [n_issuers + n_queues, 8]: issuers, then the queues of round-robin issuers, one per destination
ISSUER_NODE, ISSUER_POOL, ISSUER_DISCIPLINE, ISSUER_NEXT, ISSUER_END, ISSUER_SIZE, ISSUER_SEQ, ISSUER_OWNER = range(8)
# ISSUER_OWNER: the issuer itself, or whose queue it is; round robin: its queues are ISSUER_NEXT .. ISSUER_END, ISSUER_SEQ is the one served last
# ISSUER_NEXT .. ISSUER_END: its ops not yet taken (program order) or the place of its heap; ISSUER_SIZE: heap size; ISSUER_SEQ: ready count

# chain, int32 [n_chains, 4]: pool, 1 = gives its slot back at every end, ops not done, 1 = has a slot
CHAIN_POOL, CHAIN_YIELD, CHAIN_LEFT, CHAIN_ON = range(4)

# paced issuer, int64 [n_issuers, 2]: time between two of its ops, time from which the next one may go
PACE_PS, PACE_NEXT = range(2)

# share of a pool, int64 [n_shares, 2]: slots that its issuers may hold, slots that they hold; split of a share, int64 [n_splits, 4]
SHARE_MOST, SHARE_HELD = range(2)
SPLIT_OP, SPLIT_SHARE, SPLIT_MOST, SPLIT_MORE = range(4)

# sum in the switch, int64 [n_sessions, 5]: contributions to be added, or delivered one by one; state; last byte of the latest; its members
SUM_LEFT, SUM_STATE, SUM_TAIL, SUM_FIRST, SUM_LAST = range(5)
SUM_NEW, SUM_OPEN, SUM_PASSES = range(3)

# bulk op, int64 [n_bulk, 10]: the op; trains not sent, not delivered; most trains of a piece; its pieces that are free (a list by NEXT2, -1 = none);
# 1 = it is in the hub; pieces of its flow (in the row of FLOW) that have asked for the down link of its member; port of the member; payload of a
# train; the first bulk op of its flow: same port, class and member
BULK_OP, BULK_LEFT, BULK_DUE, BULK_MOST, BULK_FREE, BULK_WAITS, BULK_AT, BULK_TO, BULK_BYTES, BULK_FLOW = range(10)
# piece of a bulk op, int64 [n_pieces, 8]: its bulk op; trains; trains not served by the down server, of which in its present turn;
# busy time and bytes of the up server before the first train, and of the down server before the turn
PIECE_BULK, PIECE_TRAINS, PIECE_LEFT, PIECE_TURN, PIECE_UP_START, PIECE_UP_BYTES, PIECE_DOWN_START, PIECE_DOWN_BYTES = range(8)
# port with bulk ops, int64 [n_ports, 2]: the piece that its up link sent last (-1 = none), copies and results that have asked for its down link
PORT_PIECE, PORT_ASKED = range(2)
# merged loads (blocks/loads.py), int64 [n_addresses + n_homes, 10]: loads expected, state, loads so far, the one that went on, those that wait for
# its response, last byte of the response, latest use; the list of a home's entries, least recently used first, through the home's row
LOAD_EXPECTED, LOAD_STATE, LOAD_COUNT, LOAD_OWNER, LOAD_FIRST, LOAD_LAST, LOAD_TAIL, LOAD_USED, LOAD_PREV, LOAD_NEXT = range(10)
LOAD_NONE, LOAD_WAIT, LOAD_READY = range(3)

# pool, int64 [n_pools, 3]
POOL_FREE, POOL_SIZE, POOL_BASE = range(3)  # free slots; batches running and where their heap begins

# machine parameters, int64 [16]; LEAF_*: the first leaf of each source of events in the tree
(
    HARDWARE_NOTIFY, HARDWARE_RESPONDER, HARDWARE_LOCAL, HARDWARE_NOTIFY_BYTES, HARDWARE_CLASSES, HARDWARE_MEMORY, HARDWARE_NODES,
    HARDWARE_NETS, LEAF_UP, LEAF_ARRIVE, LEAF_DOWN, LEAF_RINGS, LEAF_CREDIT, LEAF_TABLE, LEAF_PACE, ROW_POINTS,
) = range(16)  # fmt: skip
# ROW_POINTS: 1 = something falls when a row is first touched or complete

# run state, int64 [7]
RUN_NOW, RUN_DIRTY, RUN_EVENTS, RUN_WORK_HEAD, RUN_WORK_TAIL, RUN_DONE, RUN_BLOCKED_PS = range(7)

# kinds of rings of pending events with a constant delay: kind k of net p is ring k * nets + p and has the leaf LEAF_RINGS + ring,
# RING_ARRIVE has LEAF_ARRIVE + p; LOCAL, NOTIFY and RESPOND_LATE have one delay, so all are in the ring of net 0
RING_ARRIVE, RING_DELIVER, RING_RESPOND, RING_RESULT, RING_RESULT_DELIVERED, RING_LOCAL, RING_ACK, RING_NOTIFY, RING_RESPOND_LATE = range(9)
N_RINGS = 9  # RING_RESPOND_LATE: responders whose request waited for a table

# table of all hubs, int64 [n_tables, 4]; ENTRIES of a bank; ALLOCATES: 1 = a row table (engine/blocks/tables.py)
TABLE_ENTRIES, TABLE_MISSES, TABLE_MISS_PS, TABLE_ALLOCATES = range(4)
# table of one hub, int64 [n_tables * n_nodes, 5]: when its latest lookup began, cached rows, counts of lookups and misses, time that copies waited
HUB_CLOCK, HUB_CACHED_ROWS, HUB_LOOKUPS, HUB_MISSES, HUB_WAIT_PS = range(5)
# asked row, int64 [n_rows + n_tables * n_nodes, 4]: rows of one cache are a ring, least recently asked first, through the hub's row
ASKED_PREV, ASKED_NEXT, ASKED_CACHED, ASKED_KNOWN = range(4)
# place of a row, int32 [n_rows + n_nodes * banks, 6]: rows, then the sentinels of the banks
PLACE_PREV, PLACE_NEXT, PLACE_STATE, PLACE_LEFT, PLACE_REGION, PLACE_BANK = range(6)
# STATE: of a sentinel the rows in its bank; LEFT: pieces that have not been placed, of a sentinel the rows that its bank spilled;
# BANK: sentinel of the row's bank
ROW_NEW, ROW_SPILLED, ROW_HELD, ROW_READ, ROW_GONE = range(5)
# up to SPILLED (in memory) it is not in the table; HELD: in the table; READ: in it after a read of memory; GONE: its last piece has been placed
