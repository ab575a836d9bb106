"""The best of `serve` is the best of all members of its space: drawn small spaces, each member worked out."""

import itertools
import random

import pytest

from mfabric_jax.apps.serving import cheapest, fastest, request_load, rows_within_limits, search, serve
from mfabric_jax.apps.serving.request_load import mean_context, requests_of
from mfabric_jax.apps.serving.rows import cached_deployment, full_row
from mfabric_jax.apps.serving.search import TIE
from mfabric_jax.apps.serving.sizing import PrefillChoice, batches_of, best_of, fewest
from mfabric_jax.case import Case, cases

DRAWN, LOADED = range(25), (*range(12), 23)  # spaces without a load, and with one: 23 tells a first success
GROUPS = 1, 2
BASE = {
    **{"model.name": "deepseek-v3", "network.fabric": "fat-tree", "gpu.name": "H200-SXM"},
    **{"serving.context": 300.0, "serving.answer": 40},
}


@pytest.fixture(scope="module", autouse=True)
def coarse():
    """Tables of seconds with few points, for members and search alike."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(request_load, "GRID", (12, 5))
        patched.setattr(request_load, "PASSES", (5, 1))
        yield


class Drawn:
    """A small space: values of what a search chooses, and what is asked of it."""

    def __init__(self, seed, loaded, kind=None):
        draw = random.Random(seed)
        self.sizes = draw.sample((8, 16, 24), draw.randint(1, 2))
        self.batches = draw.sample(range(2, 40), 2)
        self.ways = draw.choice(((True,), (False,), (True, False)))
        pools = [*itertools.product((8, 16), (1024, 4096), (True, False))]
        self.pools = draw.sample(pools, draw.randint(1, 2))
        self.asked = BASE | {"serving.by": draw.choice(("predicted", "high")), "run.seed": seed}
        self.asked |= {} if kind is None else {"serving.prefill.gpu": kind, "gpu.usd": 1000.0, "gpu.watts": 100.0}
        member = cached_deployment(
            Case().with_(self.asked | self.settings(*(draw.choice(some) for some in self.axes())))
        )
        choice, numbers = PrefillChoice.of(member), member.numbers._replace(context=320.0)
        step_s = float(member.tpot_for_limit_s(numbers))
        self.asked["serving.tpot_ms"] = 1000 * step_s * draw.uniform(0.97, 1.1)
        least_ms = 1000 * (choice.lone_s + step_s)
        self.asked["serving.load.ttft_ms"] = draw.choice((None, least_ms * draw.uniform(0.98, 2)))
        self.groups = [(None,), (None,)]
        if loaded:
            rates = float(member.decode.model.gpus * member.decoding(numbers).requests / step_s / 40)
            rates = min(rates, self.pools[0][0] * member.pass_tokens / float(member.pass_for_limit_s(400.0)) / 300)
            self.asked |= {"serving.load.rate": rates * draw.uniform(0.5, 1.95), "serving.load.requests": 120}
            self.asked["serving.load.keep"] = draw.choice((0.7, 0.9, 0.99))
            groups = GROUPS if kind is None else range(1, 6)
            self.groups = [(draw.choice(groups),) if draw.random() < 0.2 else groups for _ in range(2)]
        names = "decode_groups", "prefill_groups"
        stated = {name: counts[0] for name, counts in zip(names, self.groups, strict=True) if len(counts) == 1}
        self.asked |= {f"serving.load.{name}": count for name, count in stated.items()}

    def axes(self):
        return self.sizes, self.batches, self.ways, self.pools

    def settings(self, ep, batch, way, pool):
        """Of a member, but for groups."""
        said = {"serving.ep": ep, "serving.batch": float(batch), "serving.overlap": way}
        return said | self.pool(*pool)

    @staticmethod
    def pool(ep, tokens, overlap):
        names = ("serving.prefill.ep", ep), ("serving.prefill.tokens", tokens), ("serving.prefill.overlap", overlap)
        return dict(names)

    def members(self):
        """A row for every member, all of it stated."""
        for *chosen, decode_groups, prefill_groups in itertools.product(*self.axes(), *self.groups):
            said, groups = self.settings(*chosen), (decode_groups, prefill_groups)
            said |= dict(zip(("serving.load.decode_groups", "serving.load.prefill_groups"), groups, strict=True))
            deployed = cached_deployment(Case().with_(self.asked | said))
            if request_load.has_load(deployed.case):
                yield request_load.columns(deployed) | {"fits": deployed.prefill_fits}
            else:
                yield full_row(deployed, None, arriving=False)

    def found(self):
        """A row for the best of every size."""
        for ep in self.sizes:
            case = Case().with_(self.asked | {"serving.ep": ep, "serving.prefill.ep": self.pools[0][0]})
            deployed, loaded = cached_deployment(case), request_load.has_load(case)
            context = mean_context(requests_of(deployed)) if loaded else case.serving.context
            decode = []
            for way in self.ways:
                own = cached_deployment(case.with_({"serving.overlap": way}))
                decode.append(batches_of(own, context, self.batches))
            prefill = [PrefillChoice.of(cached_deployment(case.with_(self.pool(*pool)))) for pool in self.pools]
            chosen = [fewest(decode, prefill)] if loaded else [(one, None) for one in best_of(decode, prefill)]
            for member, outcome in chosen:
                yield full_row(member, outcome, arriving=loaded)


def plainly_in_time(row):
    """As the page "Serving" says it."""
    if row.get("load_requests") is None:
        end = "_high" if row["by"] == "high" else ""
        late = row["ttft_limit_s"] is not None and row[f"ttft{end}_s"] > row["ttft_limit_s"]
        return row["fits"] and row[f"tpot{end}_s"] <= row["tpot_limit_s"] and not late
    busiest = max(row["decode_load"], row["prefill_load"])
    return row["fits"] and row["in_slo"] >= row["in_slo_limit"] and busiest <= 1


def gpus(row):
    return row["load_decode_gpus"] + row["load_prefill_gpus"]


@pytest.mark.parametrize("seed", DRAWN)
def test_without_a_load_the_most_tokens_and_the_fewest_dollars_are_those_of_all_members(seed):
    space = Drawn(seed, loaded=False)
    every = [row for row in space.members() if plainly_in_time(row)]
    found = rows_within_limits(space.found())
    assert bool(found) == bool(every)
    if every:
        assert fastest(found)["tokens_per_s_per_gpu"] == max(row["tokens_per_s_per_gpu"] for row in every)
        least = min(row["usd_per_million_tokens"] for row in every)
        assert min(row["usd_per_million_tokens"] for row in found) == pytest.approx(least, rel=1e-12)


@pytest.mark.parametrize("seed", LOADED)
def test_under_a_load_the_fewest_gpus_and_dollars_are_those_of_all_members(seed):
    space = Drawn(100 + seed, loaded=True)
    every = [row for row in space.members() if plainly_in_time(row)]
    found = rows_within_limits(space.found())
    beyond = [row for row in found if gpus(row) > max(map(gpus, every), default=0)]  # more groups than were looked at
    assert bool(every) <= bool(found)
    if every and beyond != found:
        best, least = fastest(found), cheapest(found)
        assert gpus(best) == min(map(gpus, every))
        dollars = min(row["load_usd_per_million_tokens"] for row in every)
        assert least["load_usd_per_million_tokens"] == pytest.approx(dollars, rel=TIE)


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2, 3, 54])  # 54 tells the price from the count of GPUs
def test_with_two_kinds_of_gpus_the_fewest_dollars_are_those_of_all_members(seed, loaded):
    space = Drawn(200 + seed, loaded, "B200-HGX")
    every, found = [row for row in space.members() if plainly_in_time(row)], rows_within_limits(space.found())
    assert bool(every) <= bool(found)
    if every:
        name = "load_usd_per_million_tokens" if loaded else "usd_per_million_tokens"
        least = min(row[name] for row in every)
        assert min(row[name] for row in found) <= least * (1 + 1e-12)
        assert loaded or cheapest(found)[name] == pytest.approx(least, rel=TIE)


# ------------------------------------------------------------------------------------------------------ whole searches
H200 = Case().with_(
    {
        **{"model.name": "deepseek-v3", "network.fabric": "fat-tree", "gpu.name": "H200-SXM"},
        **{"serving.tpot_ms": 50.0, "serving.by": "predicted"},
    }
)


def test_a_batch_that_is_never_full_may_be_larger_than_a_full_one_in_time():
    """A full batch of 17 takes longer than 34.6 ms at 4,608 tokens of context, but 3.7 requests a second do not fill
    it; 16 would need a second group."""
    case = H200.with_({"serving.tpot_ms": 34.6, "serving.load.rate": 3.7, "serving.ep": 8})
    (row,) = rows_within_limits(serve(case))
    assert (row["load_decode_gpus"], row["load_prefill_gpus"], row["batch"], row["overlap"]) == (8, 8, 17, False)
    assert row["tpot_s"] <= 0.0346


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "count"), [(15.0, 24)])
def test_a_load_takes_the_fewest_gpus_of_all_sizes(rate, count):
    rows = rows_within_limits(search(cases(H200.with_({"serving.load.rate": rate}))))
    assert gpus(fastest(rows)) == min(map(gpus, rows)) == count
    dollars = [row["load_usd_per_million_tokens"] for row in rows]
    assert cheapest(rows)["load_usd_per_million_tokens"] == pytest.approx(min(dollars), rel=TIE)


def test_every_size_counts_without_a_load():
    """256 GPUs, with an expert each, decode more than any other size, and 176 more than 144 or 160."""
    rows = rows_within_limits(search(cases(H200)))
    best = fastest(rows)
    assert best["ep"] == 256
    assert best["tokens_per_s_per_gpu"] == pytest.approx(2821, abs=1)
    speed = {row["ep"]: row["tokens_per_s_per_gpu"] for row in rows}
    assert speed[176] > max(speed[144], speed[160])


def test_requests_that_no_memory_holds_are_not_in_time(tmp_path):
    log = tmp_path / "log.csv"
    lines = [f"{i / 10},{900 if i % 10 else 40_000_000},20" for i in range(200)]
    log.write_text("\n".join(["Timestamp,Request tokens,Response tokens", *lines]), encoding="utf-8")
    case = H200.with_({"serving.ep": 16, "serving.load.arrivals": str(log), "serving.prefill.ep": 8})
    for keep, enough in ((0.99, False), (0.85, True)):
        row = next(serve(case.with_({"serving.load.keep": keep})))
        assert row["refused"] == 20
        assert row["in_slo"] == pytest.approx(0.9, abs=0.01)
        assert bool(rows_within_limits([row])) is enough
