"""Mutants of what the engine does with sums in the switch; `random_sums` makes the Programs that tell them from the oracle."""

from dysharp.testing.mutants import LOWER, SWITCH, TRAINS, TRANSFERS, Mutant

POINTS = "uarch.points"

SUM_MUTANTS = (
    # places
    Mutant("sums take no place", SWITCH, "        points.places[home] -= sums[s, SUM_STATE] == SUM_OPEN", "        pass"),
    Mutant("sums keep their place", TRANSFERS, "    points.places[home] += 1", "    pass"),
    Mutant("one place too many", SWITCH, "if points.places[home] > 0 else SUM_PASSES", "if points.places[home] >= 0 else SUM_PASSES"),
    Mutant(
        "every contribution tries for a place",
        SWITCH,
        "        sums[s, SUM_STATE] = SUM_OPEN if points.places[home] > 0 else SUM_PASSES",
        "        if points.places[home] == 0:\n            return False\n        sums[s, SUM_STATE] = SUM_OPEN",
    ),
    Mutant("no limit of places", LOWER, "p.sessions.places or 1 << 40", "1 << 40"),
    Mutant("homes share their places", SWITCH, "    home = mem[k, MEMBER_NODE]\n    if sums", "    home = 0\n    if sums"),
    # contributions
    Mutant("contributions of the home are expected", LOWER, "np.where(far, p.ops.session, -1)", "np.where(far | True, p.ops.session, -1)"),
    Mutant("the sum leaves one contribution early", SWITCH, "    if sums[s, SUM_LEFT] == 0:", "    if sums[s, SUM_LEFT] == 1:"),
    Mutant("tail of the last contribution, not the latest", SWITCH, "max(sums[s, SUM_TAIL], ops.ot[o, TAIL])", "ops.ot[o, TAIL]"),
    Mutant("sums do not wait for their tail", TRAINS, "    return points.sums[s, SUM_TAIL] + lat", "    return bound"),
    Mutant(
        "sums go to the last contributor",
        SWITCH,
        "        result_out(o, home, ops, mem, links, switch, clock)",
        "        result_out(o, ops.op[o, NODE], ops, mem, links, switch, clock)",
    ),
    Mutant(
        "contributors in another order",
        SWITCH,
        "    if sums[s, SUM_FIRST] < 0:\n        sums[s, SUM_FIRST] = k\n"
        "    else:\n        mem[sums[s, SUM_LAST], MEMBER_NEXT] = k\n    sums[s, SUM_LAST] = k",
        "    mem[k, MEMBER_NEXT] = sums[s, SUM_FIRST]\n    sums[s, SUM_FIRST] = k",
    ),
    # the way of the sum
    Mutant("sums in another class", LOWER, "t.cls if t.kind is Kind.PUSH_REDUCE else t.response_cls", "t.response_cls"),
    Mutant("sums have no bytes", LOWER, "    wires[summed, col.WIRE_RESULT] = wires[summed, col.WIRE_DOWN]", "    pass"),
    Mutant("the home acknowledges nothing", TRANSFERS, "    server_debt(nodes, home, UP, links.wires[w, WIRE_ACK_UP])", "    pass"),
    Mutant("the home writes nothing", TRANSFERS, "    memory_take(nodes, home, links.wires[w, WIRE_PAYLOAD], clock.m, now)", "    pass"),
    Mutant("only the last contributor hears", TRANSFERS, "    k = points.sums[s, SUM_FIRST]\n", "    pass\n"),
    Mutant("contributions of a sum deliver nothing", TRANSFERS, "        delivered(k, contributor, ops, clock.x, points)\n", ""),
    Mutant(
        "contributors hear before the rows",
        TRANSFERS,
        "    rows_fill(k, o, ops, members, stores, issue, links, clock)\n    server_debt",
        "    server_debt",
    ),
    # sums that pass
    Mutant("every contribution fills the rows", POINTS, "    return points.sums[s, SUM_LEFT] == 0", "    return True"),
)
