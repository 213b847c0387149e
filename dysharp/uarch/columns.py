"""Names of the columns of the state blocks. A block is a 2-D integer array; every kernel names its columns from here."""

INF = 1 << 62  # no pending time

# op: one record of 128 B, int32 [n_ops + 1, 32] and the same memory as int64 [n_ops + 1, 16]; row n_ops is spare
# static
TEMPLATE, NODE, WIRE, ISSUER, PRIO, KEY, MEMBER, FLAGS = range(8)
HAS_EDGES, HAS_HOLDS, HAS_RELEASES = 1, 2, 4  # bits of FLAGS
ANY_FLAG, MEMBERS_SHIFT = 7, 3  # the bits above count the op's members
# state
DEPS = 8  # dependencies left
COPIES = 9  # copies still to leave the switch
LEFT = 10  # deliveries (push), results and locals (pull) or tasks (compute) left until done
NEXT = 11  # link: class FIFO -> ARRIVE ring -> VC FIFO -> credit list
NEXT2 = 12  # link: RESULT ring -> reduction unit's FIFO -> RESULT_DELIVERED ring; ACK ring; worklist
VC = 13
CAUSE = 14
ANSWERS = 15  # responses (pull) or tasks not started (compute) left
# times, in the int64 view
READY, ISSUE, START, END, DONE, TAIL, SCRATCH = range(8, 15)  # TAIL: last byte of the train; SCRATCH: due time in a ring

TOUCH_LINE_2 = 16  # any int32 column of the record's second cache line

# member: one record of 32 B, int32 [n_members + 1, 8] and the same memory as int64 [n_members + 1, 4]
B_NODE, B_LINK, B_OP, B_FILL, B_EXT = range(5)
B_TIME = 3  # in the int64 view

# template, int32 [n_templates, 6]
KIND, CLS, RESPONSE_CLS, TASKS, IS_PULL, DURATION = range(6)

# wire, int64 [n_wires, 9]; of a COMPUTE op, WIRE holds its rows instead
W_UP, W_DOWN, W_RESPONSE, W_RESULT, W_ACK_UP, W_ACK_DOWN, W_STRIPE_UP, W_STRIPE_RESPONSE, W_PAYLOAD = range(9)

# row, int32 [n_rows, 4]
R_LEFT, R_SLOT, R_NOTIFY, R_REGION = range(4)

# region, int32 [n_regions, 5]
G_NODE, G_TILE_ROWS, G_ROW0, G_TILE0, G_USED = range(5)

# tile, int32 [n_tiles, 7]; T_SLOT0 .. T_SLOT0 + T_ROWS are its slots
T_LEFT, T_NOTIFY_DEPS, T_NEXT, T_CAUSE, T_NODE, T_ROWS, T_SLOT0 = range(7)
# tile, times, int64 [n_tiles, 2]
TT_READY, TT_NOTIFY = range(2)

# node, int64 [n_nodes, 17]: one server each way, and until when the bandwidth of its memory is promised
UP, DOWN = 0, 8  # offsets of the two servers
S_FREE, S_BUSY_START, S_BUSY_BYTES, S_DEBT, S_CURSOR, S_MASK, S_WIRE, S_EXTRA = range(8)
# S_MASK: classes with something queued; S_WIRE: wire bytes so far; S_EXTRA: up = blocked since (-1 = not), down = copy being sent

PROMISED = 16

# issuer, int64 [n_issuers, 7]
I_NODE, I_POOL, I_DISCIPLINE, I_NEXT, I_END, I_SIZE, I_SEQ = range(7)
# I_NEXT .. I_END: its ops not yet taken (program order) or the place of its heap; I_SIZE: heap size; I_SEQ: ready count

# pool, int64 [n_pools, 3]
P_FREE, P_SIZE, P_BASE = range(3)  # free slots; batches running and where their heap begins

# machine parameters, int64 [11]
M_RATE, M_LAT, M_ACK, M_NOTIFY, M_RESPONDER, M_LOCAL, M_VCS, M_VC_BYTES, M_NOTIFY_BYTES, M_CLASSES, M_MEMORY = range(11)

# run state, int64 [8]
X_NOW, X_DIRTY, X_EVENTS, X_WORK_HEAD, X_WORK_TAIL, X_DONE, X_BLOCKED_PS, X_TOUCHED = range(8)  # X_TOUCHED: sink of tile_touch

# rings of pending events with a constant delay; one leaf of the tree each
RING_ARRIVE, RING_DELIVER, RING_RESPOND, RING_RESULT, RING_RESULT_DELIVERED, RING_LOCAL, RING_ACK, RING_NOTIFY = range(8)
N_RINGS = 8
