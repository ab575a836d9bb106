"""A step of decoding in plain Python: every part of a layer as a sentence of the model says it, copies by all sets of
slots, and links as fluid flows that share them max-min fairly. Numbers in, numbers out; SI units.
"""

import itertools
import math


# ------------------------------------------------------------------------------------------------------------- copies
def allowed(experts, k, groups=1, most=1):
    """Sets of k experts of at most `most` of so many groups of neighbours."""
    sets = itertools.combinations(range(experts), k)
    return [s for s in sets if len({i * groups // experts for i in s}) <= most]


def taken_by(weight, sets):
    """[probability of each set], proportional to the product of its experts' weights; [how often an expert is taken]"""
    product = [math.prod(weight[i] for i in s) for s in sets]
    whole, taken = sum(product), [0.0] * len(weight)
    for s, p in zip(sets, product, strict=True):
        for i in s:
            taken[i] += p / whole
    return [p / whole for p in product], taken


def chances(taken, k, groups=1, most=1):
    """[(set of k experts, probability)], where an expert is in the set with its probability `taken`: sets are as likely
    as the product of their experts' weights. At most `most` of so many groups of neighbours may be in a set."""
    always = {i for i, t in enumerate(taken) if t > 1 - 1e-12}
    sets = [s for s in allowed(len(taken), k, groups, most) if always <= set(s)]
    weight = [1.0] * len(taken)
    for _ in range(2000):
        likely, inside = taken_by(weight, sets)
        if max(abs(a - b) for a, b in zip(inside, taken, strict=True)) < 1e-13:
            break
        weight = [
            w if i in always else w * (t * (1 - x) / (x * (1 - t))) ** (0.5 / k)
            for i, (w, t, x) in enumerate(zip(weight, taken, inside, strict=True))
        ]
    else:
        raise ArithmeticError("weights did not converge")
    return list(zip(sets, likely, strict=True))


def reach(likely, experts, places):
    """Probability that a token has an expert in each place; `experts`, `places`: of every slot. A token of an expert
    goes to one of its slots, to each as often."""
    found = [0.0] * (max(places) + 1)
    slots = {e: [place for own, place in zip(experts, places, strict=True) if own == e] for e in experts}
    for chosen, probability in likely:
        for place in range(len(found)):
            missed = math.prod(1 - slots[e].count(place) / len(slots[e]) for e in chosen)
            found[place] += probability * (1 - missed)
    return found


def slots_taken(selected, experts):
    """Probability that a token goes to each slot."""
    return [selected[e] / experts.count(e) for e in experts]


def flows_of(selected, experts, slots, per_server, rule, k, groups=1, most=1):
    """(bytes between GPUs of different servers, bytes between GPUs of each server), as {(from, to): copies}; `selected`
    of every expert, `experts` of every slot."""
    gpus = len(experts) // slots
    servers, gpu_of = gpus // per_server, [i // slots for i in range(len(experts))]
    if rule == "expert":
        taken = slots_taken(selected, experts)
        to_gpu = [sum(taken[i] for i in range(len(taken)) if gpu_of[i] == g) for g in range(gpus)]
    else:
        likely = chances(selected, k, groups, most)
        to_gpu = reach(likely, experts, gpu_of)
        to_server = reach(likely, experts, [g // per_server for g in gpu_of])
    between, inside = {}, {}
    for a, b in itertools.permutations(range(gpus), 2):
        same = a // per_server == b // per_server
        if rule != "server":
            (inside if same else between)[a, b] = to_gpu[b]
        elif same:  # what comes to a: its own tokens, and those of the GPUs of its place elsewhere
            inside[a, b] = servers * to_gpu[b]
        elif a % per_server == b % per_server:
            between[a, b] = to_server[b // per_server]
    return between, inside


# -------------------------------------------------------------------------------------------------------------- links
def drained(flows, capacity):
    """When the last of the flows [(size, {link: part})] is through; links are shared max-min fairly at every moment."""
    left, now = {f: size for f, (size, _) in enumerate(flows) if size > 0}, 0.0
    while left:
        rate, free, open_flows = {}, dict(capacity), set(left)
        while open_flows:
            use = {}
            for f in open_flows:
                for link, part in flows[f][1].items():
                    use[link] = use.get(link, 0.0) + part
            level = min(free[link] / used for link, used in use.items())
            full = {link for link, used in use.items() if free[link] / used <= level * (1 + 1e-12)}
            fixed = {f for f in open_flows if full & set(flows[f][1])}
            for f in fixed:
                rate[f] = level
                for link, part in flows[f][1].items():
                    free[link] = max(0.0, free[link] - level * part)
            open_flows -= fixed
        step = min(left[f] / rate[f] for f in left)
        now += step
        left = {f: size for f in left if (size := left[f] - step * rate[f]) > 1e-12 * flows[f][0]}
    return now


def on_tree(between):
    """Each GPU has one NIC of 1 byte/s."""
    gpus = {end for pair in between for end in pair}
    capacity = {(way, g): 1.0 for way in ("out", "in") for g in gpus}
    return drained([(size, {("out", a): 1.0, ("in", b): 1.0}) for (a, b), size in between.items()], capacity)


def between_servers(between, per_server):
    """{(server, server): bytes}."""
    found = {}
    for (a, b), size in between.items():
        pair = a // per_server, b // per_server
        found[pair] = found.get(pair, 0.0) + size
    return found


def near_square(servers):
    """The two factors that are nearest to each other, the larger first."""
    low = max(n for n in range(1, math.isqrt(servers) + 1) if servers % n == 0)
    return servers // low, low


def torus_way(shape, a, b):
    """Links (from, to) in dimension order, the short way round; half way round even coordinates go up."""
    at, there, way = [a % shape[0], a // shape[0]], (b % shape[0], b // shape[0]), []
    for axis, size in enumerate(shape):
        while at[axis] != there[axis]:
            up = (there[axis] - at[axis]) % size
            step = 1 if 2 * up < size or (2 * up == size and at[axis] % 2 == 0) else -1
            before = tuple(at)
            at[axis] = (at[axis] + step) % size
            way.append((before, tuple(at)))
    return way


def on_torus(between, per_server, servers):
    """Servers on a plane with a NIC of 1 byte/s in each direction."""
    shape, capacity, flows = near_square(servers), {}, []
    for axis, size in enumerate(shape):
        for one in itertools.product(*(range(n) for n in shape)):
            for step in (1, -1) if size > 1 else ():
                there = list(one)
                there[axis] = (there[axis] + step) % size
                link = one, tuple(there)
                capacity[link] = capacity.get(link, 0.0) + 1.0
    for (a, b), size in between_servers(between, per_server).items():
        links = {}
        for link in torus_way(shape, a, b):
            links[link] = links.get(link, 0.0) + 1.0
        flows.append((size, links))
    return drained(flows, capacity)


PLANE = {"network__full-mesh__dimensions": 2, "network__full-mesh__paths": "shortest"}  # what `on_full_mesh` is


def on_full_mesh(between, per_server, servers):
    """Servers on a plane, joined with all of their row and column; `per_server` NICs of 1 byte/s split evenly over
    peers; half of the bytes go along the one dimension first, half along the other."""
    shape = near_square(servers)
    width, capacity, flows = per_server / max(1, sum(n - 1 for n in shape)), {}, []
    for (a, b), size in between_servers(between, per_server).items():
        here, there = (a % shape[0], a // shape[0]), (b % shape[0], b // shape[0])
        corners = [here] if here[0] == there[0] or here[1] == there[1] else [(there[0], here[1]), (here[0], there[1])]
        links = {}
        for corner in corners:
            for link in ((here, corner), (corner, there)):
                if link[0] != link[1]:
                    links[link] = links.get(link, 0.0) + 1 / len(corners)
                    capacity[link] = width
        flows.append((size, links))
    return drained(flows, capacity)


def inside_servers(inside, per_server):
    """The slowest server, a GPU's NVLinks at 1 byte/s each way."""
    servers = {a // per_server for a, _ in inside}
    return max((on_tree({p: s for p, s in inside.items() if p[0] // per_server == one}) for one in servers), default=0)


# ---------------------------------------------------------------------------------------------------- parts of a layer
# A format: peak FLOP/s over that of bf16, bytes of a weight, of an activation, and of its cast.
FORMATS = {"bf16": (1, 2, 2, 0), "fp8": (2, 1, 1, 3)}


def product_s(gpu, number, rows, inner, outer):
    """Floor, then FLOPs (of whole waves of tiles of 128 x 128) and bytes with a soft knee, then the cast."""
    (peak, weight, activation, cast), fit = FORMATS[number], gpu["products"][number]
    tiles = math.ceil(rows / 128) * math.ceil(outer / 128)
    waves = math.ceil(tiles / gpu["sms"]) * gpu["sms"] / tiles
    flops_s = 2 * rows * inner * outer / (peak * gpu["flops"] * fit["rate"]) * waves ** fit["wave"]
    read = inner * outer * weight + rows * inner * activation + rows * outer * 2
    bytes_s = read / (gpu["memory"] * fit["bw"])
    knee = (flops_s ** fit["p"] + bytes_s ** fit["p"]) ** (1 / fit["p"])
    return fit["floor_us"] * 1e-6 + knee + cast * rows * inner / (gpu["memory"] * fit["cast"])


def small_s(gpu, count, size):
    """Kernels that move bytes."""
    return count * gpu["pointwise"]["floor_us"] * 1e-6 + size / (gpu["memory"] * gpu["pointwise"]["bw"])


def attention_s(model, gpu, tokens, requests, context):
    kind, hidden, number = model["attention"], model["hidden"], model["weights"]
    heads, queries = kind["heads"], tokens / requests
    if kind["name"] == "mla":
        rank, latent = kind["kv_rank"], kind["kv_rank"] + kind["rope_dim"]
        shapes = [
            (number, hidden, kind["query_rank"] + latent),
            (number, kind["query_rank"], heads * (kind["nope_dim"] + kind["rope_dim"])),
            ("bf16", kind["nope_dim"], heads * rank),
            ("bf16", rank, heads * kind["value_dim"]),
            (number, heads * kind["value_dim"], hidden),
        ]
        assert heads == 128  # the most that were measured
        read, known = requests * context * latent * queries, gpu["decode"]["128"]
        beside = gpu["latent"]["floor_us"] * 1e-6 + gpu["latent"]["ns_a_token"] * 1e-9 * tokens
    else:
        dim, both = kind["head_dim"], kind["heads"] + 2 * kind["kv_heads"]
        shapes = [(number, hidden, both * dim), (number, heads * dim, hidden)]
        read, known = requests * context * 2 * kind["kv_heads"] * dim, gpu["decode"]["gqa"]
        beside = small_s(gpu, 3, 2 * tokens * 2 * dim * (heads + kind["kv_heads"]))
    fit, size = known[model["cache"]], {"bf16": 2, "fp8": 1}[model["cache"]]
    core = fit["floor_us"] * 1e-6 + read * size / (gpu["memory"] * fit["bw"])
    core += fit["ns_a_context_token"] * 1e-9 * context
    return beside + core + sum(product_s(gpu, shape[0], tokens, *shape[1:]) for shape in shapes)


def experts_s(model, gpu, taken, slots, tokens):
    gpus, slowest = len(taken) // slots, 0.0
    (peak, weight, *_), fit = FORMATS[model["weights"]], gpu["experts"][model["weights"]]
    hidden, inner = model["hidden"], model["expert_hidden"]
    for g in range(gpus):
        own = taken[g * slots : (g + 1) * slots]
        rows = tokens * gpus * sum(own)
        active = sum(1 - (1 - t) ** (tokens * gpus) for t in own)
        flops_s = 2 * (rows + fit["tile"] / 2 * active) * 3 * hidden * inner / (peak * gpu["flops"] * fit["rate"])
        read_s = active * 3 * hidden * inner * weight / (gpu["memory"] * fit["bw"])
        moved_s = rows * (2 * hidden + 3 * inner) * 2 / (gpu["memory"] * fit["perm"])
        floor = (fit["floor_us"] + fit["per_expert_us"] * active) * 1e-6
        slowest = max(slowest, floor + math.hypot(flops_s, read_s) + moved_s)
    return slowest


def ffn_s(model, gpu, tokens, width):
    if not width:
        return 0.0
    shapes = (model["hidden"], 2 * width), (width, model["hidden"])
    products = (product_s(gpu, model["weights"], tokens, *shape) for shape in shapes)
    return sum(products) + small_s(gpu, 1, 2 * 3 * tokens * width)


def norms_s(model, gpu, tokens, count):
    return small_s(gpu, count, 10 * tokens * model["hidden"] * 2)


def router_s(model, gpu, tokens):
    return product_s(gpu, "bf16", tokens, model["hidden"], model["experts"])


def call_s(call, size, crossing, gpus, rates, tokens):
    """One kernel of dispatch or combine; `crossing`: seconds between and inside at 1 byte/s and a byte a copy."""
    if gpus == 1:
        return 0.0
    between = crossing[0] * tokens * (size / (call["nic"] * rates["nic"]) + call["nic_message_s"])
    inside = crossing[1] * tokens * (size / (call["nvlink"] * rates["nvlink"]) + call["nvlink_message_s"])
    before = call["alpha_s"] + call["peer_s"] * gpus + (call["beyond_s"] if crossing[0] else 0.0)
    return max(before + max(between, inside), call["floor_s"])


# ------------------------------------------------------------------------------------------------------------- a step
def decode(model, gpu, load, network, batch, context, drafts=(0, 0.0), overlap=True, host_s=0.0):
    """Seconds of a step and from token to token. `load`: {taken: layers of slots, slots, gpus}; `network`: {crossing,
    rates, dispatch, combine, sizes, cores}; `batch`: tokens of one micro-batch, drafted ones included."""
    checked, both = 1 + drafts[0], batch * (2 if overlap else 1)

    def layer(tokens, requests):
        calls = [
            call_s(network[name], size, network["crossing"], load["gpus"], network["rates"], tokens)
            for name, size in zip(("dispatch", "combine"), network["sizes"], strict=True)
        ]
        attention = attention_s(model, gpu, tokens, requests, context)
        experts = [experts_s(model, gpu, taken, load["slots"], tokens) for taken in load["taken"]]
        experts = sum(experts) / len(experts)
        beside = (
            norms_s(model, gpu, tokens, 5)
            + router_s(model, gpu, tokens)
            + ffn_s(model, gpu, tokens, model["shared_hidden"])
        )
        dense = attention + norms_s(model, gpu, tokens, 2) + ffn_s(model, gpu, tokens, model["dense_hidden"])
        head = product_s(gpu, "bf16", tokens, model["hidden"], model["vocab"])
        return attention, experts, beside, *calls, dense, head

    requests = both / checked
    half, whole = layer(both / 2, requests / 2), layer(both, requests)
    moe, dense = model["blocks"] - model["dense_blocks"], model["dense_blocks"]
    c, x = sum(half[:3]), half[3] + half[4]
    if (slow := c / (1 - network["cores"])) <= x:  # computes with fewer cores all the while
        c = slow
    else:
        c += network["cores"] * x
    hidden = moe * max(2 * c, 2 * x, c + x) + 2 * dense * half[5] + 2 * half[6] + host_s
    serial = moe * sum(whole[:5]) + dense * whole[5] + whole[6] + host_s
    one = layer(requests, requests)
    joined = product_s(gpu, model["weights"], requests, 2 * model["hidden"], model["hidden"])
    extra = drafts[0] * (sum(one[:5]) + one[6] + joined)
    names = "attention_s", "experts_s", "beside_s", "dispatch_s", "combine_s"
    found = dict(zip(names, half if overlap else whole, strict=False))
    step = hidden if overlap else serial
    found |= {"step_s": step, "overlapped_s": hidden, "serial_s": serial}
    ends = {"tpot_s": step, "low_s": hidden, "high_s": serial}
    return found | {name: (end + extra) / (1 + drafts[1]) for name, end in ends.items()}
