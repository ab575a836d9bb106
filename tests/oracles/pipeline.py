"""One-forward-one-backward pipeline schedule as a plain event simulation."""


def one_f_one_b(forward, backward, send):
    """(end, finish): when the iteration ends, and when each ("F" | "B", stage, micro-batch) ends.

    `forward[p][m]` and `backward[p][m]` are seconds of stage p for micro-batch m; `send` seconds pass between
    neighbouring stages. Stage p runs min(stages - p - 1, micro-batches) forwards, then alternates one forward and one
    backward, then runs the backwards that remain; each operation waits for its input and for its stage.
    """
    stages, batches = len(forward), len(forward[0])
    todo = []
    for p in range(stages):
        warm = min(stages - p - 1, batches)
        order = [("F", m) for m in range(warm)]
        for m in range(batches - warm):
            order += [("F", warm + m), ("B", m)]
        todo.append(order + [("B", m) for m in range(batches - warm, batches)])
    finish, clock = {}, [0] * stages
    while any(todo):
        stuck = True
        for p in range(stages):
            if not todo[p]:
                continue
            kind, m = todo[p][0]
            needs = []
            if kind == "F" and p > 0:
                needs = [(("F", p - 1, m), send)]
            if kind == "B":
                needs = [(("F", p, m), 0)] + [(("B", p + 1, m), send)] * (p + 1 < stages)
            if all(event in finish for event, _ in needs):
                begin = max([clock[p]] + [finish[event] + wait for event, wait in needs])
                clock[p] = begin + (forward if kind == "F" else backward)[p][m]
                finish[kind, p, m] = clock[p]
                todo[p].pop(0)
                stuck = False
        assert not stuck, "the schedule waits for itself"
    return max(clock), finish
