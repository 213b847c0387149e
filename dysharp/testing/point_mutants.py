"""Mutants of what the engine does at points besides the ends of ops; `random_points` makes the Programs that tell them from the oracle."""

from dysharp.testing.mutants import ISSUE, LOOP, LOWER, READY, TRAINS, TRANSFERS, Mutant

POINTS, CHAINS = "uarch.points", "uarch.chains"

POINT_MUTANTS = (
    # edges
    Mutant("issue passes no point", READY, "        work_push(ops, x, point)\n", "        pass\n"),
    Mutant("a JOIN is not issued", READY, "        issued(o, ops, issue, x, ops.points)\n", "        pass\n"),
    Mutant("issue is the end", ISSUE, "    issued(o, ops, issue, x, ops.points)\n", "    pass\n"),
    Mutant("stores deliver nothing", POINTS, "    delivered(k, o, ops, x, ops.points)\n", "    pass\n"),
    Mutant("local reads deliver nothing", TRANSFERS, "        delivered(k, o, ops, clock.x, ops.points)\n", "        pass\n"),
    Mutant("responses deliver nothing", TRAINS, "    delivered(k, o, ops, x, ops.points)\n", "    pass\n"),
    Mutant("cause of a delivery is its member", POINTS, "else mem[point - 2 * n_ops, MEMBER_OP]", "else point - 2 * n_ops"),
    Mutant("row edges fall with every train", POINTS, "n_bytes > 0 and stores.rows[row, ROW_LEFT] == 0:", "n_bytes > 0:"),
    Mutant("responses do not wait", TRANSFERS, "    if points is None or mem[k, MEMBER_WAITS] <= 0:", "    if True:"),
    Mutant("responses go before the read", POINTS, "if mem[k, MEMBER_WAITS] == RESPONSE_HELD:", "if mem[k, MEMBER_WAITS] & 0xFFFF == 0:"),
    # announcements
    Mutant("announcements add nothing", POINTS, "points.value[signal] - op[o, ANNOUNCED]", "-op[o, ANNOUNCED]"),
    Mutant("too many events hang", POINTS, "        if op[o, DEPS] <= 0:", "        if op[o, DEPS] == 0:"),
    Mutant("announcements are events", LOWER, "np.where(signals, HEAD_ANNOUNCE, HEAD_EVENT)", "HEAD_EVENT"),
    Mutant("one announcement is enough", LOWER, "p.ops.threshold[joins] + signals * each", "p.ops.threshold[joins] + (signals > 0) * each"),
    # semaphores
    Mutant(
        "rows take no semaphores",
        POINTS,
        "        semaphores_pass(row_point(row, ops, mem), points.releases, points.holds.sem_left, issue, clock.x)",
        "        pass",
    ),
    Mutant("every train takes the semaphores of its row", POINTS, "        points.touched[row] = 1", "        pass"),
    Mutant("first events take no semaphores", READY, "    first_event(o, ops, issue, x, ops.points)\n", "    pass\n"),
    Mutant("every event is the first", READY, "        ops.op[o, FLAGS] &= ~HAS_FIRST_EVENT", "        pass"),
    Mutant(
        "issue gives nothing back",
        READY,
        "        semaphores_pass(point, points.releases, points.holds.sem_left, issue, x)\n        work_push",
        "        work_push",
    ),
    # cancelling
    Mutant("cancelled at the first edge", POINTS, "        if ops.op[head, CANCELS] == 0:", "        if True:"),
    Mutant(
        "ready JOINs are cancelled",
        POINTS,
        "    if ops.ot[o, READY] >= 0 or op[o, DEPS] >= CANCELLED // 2:\n        return rest",
        "    if op[o, DEPS] >= CANCELLED // 2:\n        return rest",
    ),
    Mutant("what depends on it runs", POINTS, "        rest = edges_cancel(o, rest, ops, releases)", "        pass"),
    Mutant("cancelled ops give nothing back", POINTS, "        semaphores_pass(o, releases, holds.sem_left, issue, x)", "        pass"),
    Mutant("cancelled ops take nothing", POINTS, "holds.sem_left[holds.hold_sem[h]] -= holds.hold_amount[h]", "pass"),
    Mutant("cancelled ops keep their place", ISSUE, "        skip(i, issuers, issuer_ops, ops.op, ops.points)\n", "        pass\n"),
    Mutant(
        "nobody takes the place of a cancelled op", POINTS, "            mark(issue.dirty_issuers", "            (lambda *_: 0)(issue.dirty_issuers"
    ),
    # paced issuers
    Mutant("no rest", CHAINS, "        issuer_pace[i, PACE_NEXT] = clock.x[RUN_NOW] + issuer_pace[i, PACE_PS]", "        pass"),
    Mutant("rest after every batch", CHAINS, " and ot[o, START] < 0:", ":"),
    Mutant("chains do not rest", CHAINS, "    if rests(i, x, points):", "    if False:"),
    Mutant("nobody wakes", LOOP, "    mark(issue.dirty_issuers, clock.x, i)", "    pass"),
    # chains
    Mutant("no order in a chain", LOWER, "    op[ops[1:][follows], col.DEPS] += 1", "    pass"),
    Mutant("chains keep no slot", CHAINS, "(chains[c, CHAIN_LEFT] == 0 or chains[c, CHAIN_YIELD] == 1)", "True"),
    Mutant("chains never yield", CHAINS, " or chains[c, CHAIN_YIELD] == 1)", ")"),
    Mutant("chains take no slot", CHAINS, "        pools[pool, POOL_FREE] -= 1", "        pass"),
    Mutant("nobody told of a chain's slot", CHAINS, "            mark(issue.dirty_issuers, x, slots.pool_issuer[k])", "            pass"),
    Mutant("tasks of chains give slots back", ISSUE, "        return op[o, FLAGS] & HAS_CHAIN == 0", "        return True"),
    Mutant("chains wait in the queue", READY, "    if resides(o, owner, ops, issue, x, ops.points):", "    if False:"),
    Mutant("chains move no bytes", CHAINS, "m[HARDWARE_MEMORY] > 0 and n_bytes > 0:", "False:"),
)
