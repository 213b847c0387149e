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
# LANE_OUTS: outputs asked for; LANE_PTR, LANE_SPTR: round robin over outputs; LANE_RR: over VCs; LANE_OLANE: the lane of an output it reaches
LANE_OUTS, LANE_PTR, LANE_RR, LANE_SPTR, LANE_ROUTER, LANE_BIT, LANE_IN, LANE_PORT, LANE_OLANE, LANE_VCS = range(10)

# ---- output port: ports [n_ports, 8] ---------------------------------------------------------------------------------------------
# OUT_FREE: unclaimed VCs; OUT_WAIT: input ports with a VC that waits for one; OUT_TO: first input VC downstream; OUT_SINK: it is a terminal;
# OUT_DELAY, OUT_CREDIT: cycles from the grant to the arrival, and to the credit that a sink gives back; OUT_READ, OUT_LEN: queue before the link
OUT_FREE, OUT_WAIT, OUT_TO, OUT_DELAY, OUT_SINK, OUT_CREDIT, OUT_READ, OUT_LEN = range(8)

# ---- output VC: vcs [n_ports * n_vcs, 4] ---------------------------------------------------------------------------------------
CREDIT, OWNER, OPTR, OGRANT = range(4)  # OWNER: input VC, -1 = none; OPTR: round robin over input VCs; OGRANT: best so far

# ---- input port: ports [n_ports, 6] ----------------------------------------------------------------------------------------------
# The credit of VC v goes to IN_BASE + IN_STEP * v, -1 - id for a VC of a source; IN_READ, IN_LEN: queue of credits before the link
IN_BASE, IN_STEP, IN_DELAY, IN_STAMP, IN_READ, IN_LEN = range(6)

# ---- router: router [n_routers, 4] ---------------------------------------------------------------------------------------------
ROUTER_RADIX, ROUTER_SWITCH, ROUTER_WAIT, ROUTER_FREE = range(4)  # lanes that ask for the switch; outputs waited for; outputs with a free VC

# ---- lane and internal step, if packets keep the switch: hold [n_ports * input_speedup * steps, 3] -------------------------------
# HOLD_VC: input VC that keeps the lane in this step of every cycle; HOLD_OUT: the output lane;
# HOLD_NEXT: place of its next flit in the output's queue
HOLD_VC, HOLD_OUT, HOLD_NEXT = range(3)
# and of each router, held [n_routers * steps, 2]: sets of input lanes and of output lanes that are kept
HELD_IN, HELD_OUT = range(2)

# ---- source: source [n_terminals, 9] ----------------------------------------------------------------------------------------------
# SOURCE_OK: VCs with a credit; SOURCE_LEFT: flits to go
SOURCE_HEAD, SOURCE_TAIL, SOURCE_LISTED, SOURCE_LEFT, SOURCE_VC, SOURCE_PACKET, SOURCE_OK, SOURCE_SENT, SOURCE_TO = range(9)

# ---- packet in flight: packet [n_slots, 8] -----------------------------------------------------------------------------------------
PACKET_CREATED, PACKET_ENTERED, PACKET_DEST, PACKET_SALT, PACKET_MEASURED, PACKET_HOPS = range(6)

# A flit is one integer: tail bit, head bit, packet slot, cycle it entered the network.
TAIL_BIT, HEAD_BIT, SLOT_SHIFT, SLOT_MASK, TIME_SHIFT = 1, 2, 2, (1 << 22) - 1, 24

# ---- scalars that change: run ----------------------------------------------------------------------------------------------------
# RUN_LEFT: measured packets not yet arrived; RUN_ALL: count every packet (warm-up); RUN_FROM, RUN_TO: creation window of measured packets
RUN_NOW, RUN_EVENT, RUN_LISTED, RUN_FREE, RUN_FRESH, RUN_IN_NET, RUN_MOVED, RUN_LEFT, RUN_ALL, RUN_FROM, RUN_TO, RUN_EJECTED, RUN_COUNT = range(13)

# ---- statistics: stats -------------------------------------------------------------------------------------------------------------
(
    STAT_N, STAT_PACKET, STAT_PACKET_MIN, STAT_PACKET_MAX, STAT_NET, STAT_NET_MIN, STAT_NET_MAX, STAT_HOPS, STAT_FLITS, STAT_FLIT,
    STAT_FLIT_MIN, STAT_FLIT_MAX, STAT_COUNT,
) = range(13)  # fmt: skip
