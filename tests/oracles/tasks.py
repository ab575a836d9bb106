"""Flows that wait for each other, without sharing anything: the longest path, in one obvious loop."""


def longest_path(flows, bytes_per_s):
    """Begin and finish of each flow where every message has the bandwidth for itself."""
    begin, finish = {}, {}
    before = {flow: [] for flow in range(flows.flows)}
    for first, then in flows.after.tolist():
        before[then].append(first)
    stack = list(range(flows.flows))
    while stack:
        flow = stack.pop()
        missing = [other for other in before[flow] if other not in finish]
        if missing:
            stack += [flow, *missing]
            continue
        free = max([flows.start[flow], *(finish[other] for other in before[flow])])
        begin[flow] = float(free + flows.lag[flow])
        finish[flow] = begin[flow] + float(flows.seconds[flow] + flows.bytes[flow] / bytes_per_s)
    return [begin[flow] for flow in range(flows.flows)], [finish[flow] for flow in range(flows.flows)]
