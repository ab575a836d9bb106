"""Oracle of tests: can every block reach its server over these bytes from server to server, stage by stage?"""

import numpy as np
from scipy.optimize import linprog

ROUNDING = 1e-6


def carries(demand, loads):
    """Whether flows of bytes by their origin, which may wait at any server, fit into the loads [P S S] and deliver all.

    The code under test tells bytes apart by their destination.
    """
    servers, unit = len(demand), demand.sum()
    demand, loads = demand / unit, np.asarray(loads) / unit
    index = np.arange(len(loads) * servers**3).reshape(len(loads), servers, servers, servers)  # stage, origin, u, v
    equal, right, below, room = [], [], [], []

    def row(plus, minus=()):
        terms = np.zeros(index.size)
        terms[np.ravel(plus)] += 1
        terms[np.ravel(minus).astype(int)] -= 1
        return terms

    for origin in range(servers):
        for server in range(servers):
            own = demand[origin].sum() if server == origin else 0.0
            equal.append(row(index[0, origin, server]))
            right.append(own)
            for stage in range(1, len(loads)):
                equal.append(row(index[stage, origin, server], index[stage - 1, origin, :, server]))
                right.append(0.0)
            below.append(-row(index[-1, origin, :, server]))
            room.append(ROUNDING * demand.max() / servers - (demand[origin, server]))
    for stage, load in enumerate(loads):
        for u, v in np.argwhere(~np.eye(servers, dtype=bool)):
            below.append(row(index[stage, :, u, v]))
            room.append(load[u, v] * (1 + ROUNDING))
    return linprog(np.zeros(index.size), np.array(below), room, np.array(equal), right, method="highs").status == 0
