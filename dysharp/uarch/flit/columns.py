"""Columns of the state of virtual-channel routers. Constants only, so that reading them costs no compilation.

All ids are global: port `router * radix + port`, VC `port * n_vcs + vc`, for inputs and outputs alike. A *lane* is one of the crossbar
inputs of an input port (`input_speedup` of them; VC v uses lane v % input_speedup). Sets of ports and of VCs are bits of one int64.
"""

# ---- input VC: vcs [n_ports * n_vcs, 8] ----------------------------------------------------------------------------------------
# OUT: output port of this router; OVC: claimed output VC; READ: position in the ring; PTR: round robin over output VCs
STATE, OCC, READ, OUT, OVC, PTR, LANE, BIT = range(8)
IDLE, ROUTE, WAIT, HELD, ACTIVE, PASSING = range(6)
# HELD: owns an output VC, but a pipeline delay keeps it from asking for the switch; PASSING: keeps the switch until its tail has passed

# ---- lane: lane [n_ports * input_speedup, 10] ----------------------------------------------------------------------------------
# L_OUTS: outputs asked for; L_PTR, L_SPTR: round robin over outputs; L_RR: over VCs; L_OLANE: the lane of an output it reaches
L_OUTS, L_PTR, L_RR, L_SPTR, L_ROUTER, L_BIT, L_IN, L_PORT, L_OLANE, L_VCS = range(10)

# ---- output port: out [n_ports, 8] ---------------------------------------------------------------------------------------------
# O_FREE: unclaimed VCs; O_WAIT: input ports with a VC that waits for one; O_TO: first input VC downstream; O_SINK: it is a terminal;
# O_DELAY, O_CREDIT: cycles from the grant to the arrival, and to the credit that a sink gives back; O_READ, O_LEN: queue before the link
O_FREE, O_WAIT, O_TO, O_DELAY, O_SINK, O_CREDIT, O_READ, O_LEN = range(8)

# ---- output VC: ovc [n_ports * n_vcs, 4] ---------------------------------------------------------------------------------------
CREDIT, OWNER, OPTR, OGRANT = range(4)  # OWNER: input VC, -1 = none; OPTR: round robin over input VCs; OGRANT: best so far

# ---- input port: inp [n_ports, 6] ----------------------------------------------------------------------------------------------
# The credit of VC v goes to I_BASE + I_STEP * v, -1 - id for a VC of a source; I_READ, I_LEN: queue of credits before the link
I_BASE, I_STEP, I_DELAY, I_STAMP, I_READ, I_LEN = range(6)

# ---- router: router [n_routers, 4] ---------------------------------------------------------------------------------------------
R_RADIX, R_SWITCH, R_WAIT, R_FREE = range(4)  # lanes that ask for the switch; outputs waited for; outputs with a free VC

# ---- lane and internal step, if packets keep the switch: hold [n_ports * input_speedup * steps, 3] -------------------------------
# H_VC: input VC that keeps the lane in this step of every cycle; H_OUT: the output lane; H_NEXT: place of its next flit in the output's queue
H_VC, H_OUT, H_NEXT = range(3)
# and of each router, held [n_routers * steps, 2]: sets of input lanes and of output lanes that are kept
HELD_IN, HELD_OUT = range(2)

# ---- source: src [n_terminals, 9] ----------------------------------------------------------------------------------------------
Q_HEAD, Q_TAIL, Q_LISTED, Q_LEFT, Q_VC, Q_PACKET, Q_OK, Q_SENT, Q_TO = range(9)  # Q_OK: VCs with a credit; Q_LEFT: flits to go

# ---- packet in flight: pk [n_slots, 8] -----------------------------------------------------------------------------------------
K_CREATED, K_ENTERED, K_DEST, K_SALT, K_MEASURED, K_HOPS = range(6)

# A flit is one integer: tail bit, head bit, packet slot, cycle it entered the network.
TAIL_BIT, HEAD_BIT, SLOT_SHIFT, SLOT_MASK, TIME_SHIFT = 1, 2, 2, (1 << 22) - 1, 24

# ---- parameters: p -------------------------------------------------------------------------------------------------------------
(
    P_ROUTERS, P_RADIX, P_VCS, P_BUF, P_LANES, P_OLANES, P_STEPS, P_SPEC, P_VA_ISLIP, P_SA_ISLIP, P_ROUTE, P_VA, P_SA, P_ST, P_WHEEL,
    P_ARITY, P_FLITS, P_SOURCE_DELAY, P_HOLD, P_NEED, P_QUEUE, P_COUNT,
) = range(22)  # fmt: skip

# P_HOLD: packets keep the switch; P_NEED: credits that a packet must find to start; P_QUEUE: entries of the queue before a link

# ---- scalars that change: x ----------------------------------------------------------------------------------------------------
# X_LEFT: measured packets not yet arrived; X_ALL: count every packet (warm-up); X_FROM, X_TO: creation window of measured packets
X_NOW, X_EVENT, X_LISTED, X_FREE, X_FRESH, X_IN_NET, X_MOVED, X_LEFT, X_ALL, X_FROM, X_TO, X_EJECTED, X_COUNT = range(13)

# ---- statistics: s -------------------------------------------------------------------------------------------------------------
S_N, S_PACKET, S_PACKET_MIN, S_PACKET_MAX, S_NET, S_NET_MIN, S_NET_MAX, S_HOPS, S_FLITS, S_FLIT, S_FLIT_MIN, S_FLIT_MAX, S_COUNT = range(13)
