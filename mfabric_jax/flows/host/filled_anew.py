"""The loop of `ends_anew`: rates are filled anew whenever a flow ends, compiled by numba.

Flows rise together; the link that is full first holds its flows at that level (progressive filling; Bertsekas &
Gallager, Data Networks, 2nd ed., 6.5.2). Where few links are shared by all flows, every end changes most rates, and
this costs less than to find out which (`refilling`).
"""

import numpy as np

from mfabric_jax.support.loops import part_of_loops

AT_ONE_TIME = 2e-15  # relative difference of ends that counts as rounding
SAME = 1e-12  # of rates
compiled = part_of_loops(set())


def last_ends(capacity, first, link, share, group, size, ends):
    """Fill `ends` [B G]: when the last flow of each group ends. Flow f crosses `link[first[f] : first[f + 1]]`, of its
    rate a part `share` each; `size` [B F] bytes; infinity where they cross a dead link."""
    flows, links, many = len(first) - 1, len(capacity), len(link)
    begin = np.zeros(links + 1, np.int64)
    for hop in range(many):
        begin[link[hop] + 1] += 1
    for one in range(links):
        begin[one + 1] += begin[one]
    every, every_share, place = np.empty(many, np.int32), np.empty(many), begin[:-1].copy()
    for flow in range(flows):
        for hop in range(first[flow], first[flow + 1]):
            every[place[link[hop]]], every_share[place[link[hop]]] = flow, share[hop]
            place[link[hop]] += 1
    member, of_member, stop = np.empty(many, np.int32), np.empty(many), np.empty(links, np.int64)
    room, weight = np.empty(links), np.empty(links)
    open_, rising = np.empty(links, np.int64), np.empty(links, np.int64)
    left, rate, running = np.empty(flows), np.empty(flows), np.empty(flows, np.int64)
    for b in range(len(size)):
        member[:], of_member[:] = every, every_share
        for one in range(links):
            stop[one] = begin[one + 1]
        count, now = 0, 0.0
        for flow in range(flows):
            left[flow] = size[b, flow]
            if size[b, flow] > 0 and first[flow] < first[flow + 1]:
                running[count] = flow
                count += 1
            else:
                left[flow] = 0.0
        least = 0.0  # rates below it stay as they are
        for at in range(count):
            rate[running[at]] = -1.0
        while count > 0:
            for at in range(count):
                if rate[running[at]] >= least:
                    rate[running[at]] = -1.0
            _fill(capacity, first, link, share, begin, member, of_member, stop, left, room, weight, open_, rising, rate)
            step = np.inf
            for at in range(count):
                step = min(step, left[running[at]] / rate[running[at]])
            now += step
            border, still, least = step + AT_ONE_TIME * now, 0, np.inf
            for at in range(count):
                flow = running[at]
                if left[flow] <= border * rate[flow] or step == np.inf:
                    left[flow] = 0.0
                    ends[b, group[flow]] = max(ends[b, group[flow]], now)
                    least = min(least, rate[flow])
                else:
                    left[flow] -= step * rate[flow]
                    running[still] = flow
                    still += 1
            count = still
            least *= 1 - SAME


@compiled
def _fill(capacity, first, link, share, begin, member, of_member, stop, left, room, weight, open_, rising, rate):
    """Rates of flows that have bytes `left` and none (-1) yet; those without bytes leave the lists of members. A flow
    that ends leaves those below its rate as they are: links that hold them were full before its own."""
    links, many = len(capacity), 0
    for one in range(links):
        kept, used, total, count = begin[one], 0.0, 0.0, 0
        for at in range(begin[one], stop[one]):
            flow, part = member[at], of_member[at]
            if left[flow] > 0.0:
                member[kept], of_member[kept] = flow, part
                kept += 1
                if rate[flow] < 0.0:
                    total += part
                    count += 1
                else:
                    used += part * rate[flow]
        stop[one], rising[one] = kept, count
        room[one], weight[one] = capacity[one] - used, total
        if count > 0:
            open_[many] = one
            many += 1
    reached = 0.0
    while many > 0:
        least, full, still = np.inf, -1, 0
        for at in range(many):
            one = open_[at]
            if rising[one] > 0:
                open_[still] = one
                still += 1
                key = room[one] / weight[one]
                if key < least:
                    full, least = one, key
        many = still
        if full < 0:
            break
        used, total = 0.0, 0.0  # summed anew: differences of sums lose digits
        for at in range(begin[full], stop[full]):
            if rate[member[at]] >= 0.0:
                used += of_member[at] * rate[member[at]]
            else:
                total += of_member[at]
        reached = max(reached, (capacity[full] - used) / total)
        for at in range(begin[full], stop[full]):
            flow = member[at]
            if rate[flow] < 0.0:
                rate[flow] = reached
                for hop in range(first[flow], first[flow + 1]):
                    other = link[hop]
                    room[other] -= share[hop] * reached
                    weight[other] -= share[hop]
                    rising[other] -= 1
        rising[full] = 0
