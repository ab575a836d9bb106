"""The page of rows of serving gives the answer of `mfabric serve`: the same row, dollars and GPUs."""

import re

import pytest

from mfabric_jax.apps.serving import cheapest, rows_within_limits, search
from mfabric_jax.apps.serving.columns import SERVE
from mfabric_jax.apps.serving.search import gpus_of, usd_of
from mfabric_jax.case import Case, cases
from mfabric_jax.commands.serve_sentences import conclusions, spare_sentences
from mfabric_jax.report import html_report
from mfabric_jax.report.numerals import number
from mfabric_jax.report.served import LOAD_USD
from mfabric_jax.support.columns import without_details

BASE = {
    **{"model.name": "mixtral-8x7b", "gpu.name": "H200-SXM", "serving.tpot_ms": 30.0, "serving.load.ttft_ms": 2000.0},
    **{"serving.prompt": 900, "serving.answer": 60, "serving.load.requests": 400},
}


def found(changes):
    return list(search(cases(Case().with_(BASE | changes), {"network.fabric": ["fat-tree", "mfabric"]})))


@pytest.fixture(scope="module")
def loaded():
    return found({"serving.load.rate": 20.0})


@pytest.fixture
def page(tmp_path):
    """The words of a page of the rows as files have them."""

    def written(rows, rate=None):
        limits = {"serving.tpot_ms": 30.0, "serving.load.ttft_ms": 2000.0, "serving.load.keep": 0.99}
        effective = {"resolved": {"serving.load.rate": rate} | limits}
        path = html_report(without_details(rows, SERVE), effective, tmp_path / "page.html")
        return " ".join(re.sub(r"<[^>]*>", " ", path.read_text(encoding="utf-8")).split())

    return written


def check_same_answer(rows, text, at):
    """Both name the cheapest row in time, its dollars and its GPUs; the page also names designs inside the error."""
    best = cheapest(rows_within_limits(rows))
    said = next(iter(conclusions(rows)))
    usd, gpus = number(usd_of(best)), gpus_of(best)
    assert f"on {best['fabric']}" in said
    assert f"{usd} $" in said
    verdict = rf"{best['fabric']} (costs least|and [\w-]+ cost the same): \${usd} (to \$[\d.]+ )?a million {at} "
    assert re.search(verdict, text)
    design = f"{best['fabric']}, {number(best['nic_gbps'])} Gbps, ep {best['ep']}"
    assert re.search(rf"(Best|Equal) by dollars a token( at this load)?: {design}[.;]", text)
    assert gpus is None or (f"all {gpus} GPUs" in said and f"GPUs {gpus} {best['load_decode_gpus']} decode" in text)
    return best


def test_a_load_decides_whatever_full_pools_cost(loaded, page):
    at = "answer tokens at 20 requests/s"
    best = check_same_answer(loaded, page(loaded, 20.0), at)
    others = [row for row in loaded if row is not best]
    full = [row | {"usd_per_million_tokens": 0.001 if row is others[0] else 9.0} for row in loaded]
    assert check_same_answer(full, page(full, 20.0), at)["ep"] == best["ep"]
    moved = [row | {"load_usd_per_million_tokens": 0.01} if row is others[-1] else row for row in loaded]
    assert check_same_answer(moved, page(moved, 20.0), at) == moved[loaded.index(others[-1])]


def test_rows_that_are_late_are_counted_and_not_ranked(loaded, page):
    best = cheapest(rows_within_limits(loaded))
    late = [row | ({"in_slo": 0.5, "in_time": False} if row is best else {}) for row in loaded]
    text = page(late, 20.0)
    assert check_same_answer(late, text, "answer tokens at 20 requests/s")["fabric"]
    assert "Not ranked: 1 row is not in time." in text
    text = page([row | {"in_time": False} for row in loaded])
    assert "No design is in time" in text
    assert "costs least" not in text


def test_without_a_load_full_pools_in_time_decide(page):
    rows = found({})
    text = page(rows)
    best = check_same_answer(rows, text, "tokens")
    assert "Limits: 30 ms a token and 2000 ms to the first token." in text
    slower = [row | {"tpot_high_s": 1.0, "in_time": False} if row is best else row for row in rows]
    assert check_same_answer(slower, page(slower), "tokens") is not best


def test_p99_stands_beside_its_limit(loaded, page):
    best = cheapest(rows_within_limits(loaded))
    text = page(loaded, 20.0)
    for what, name, limit in (("tpot", "Time per token", 30), ("ttft", "Time to the first token", 2000)):
        p99 = number(1000 * best[f"load_{what}_p99_s"])
        assert f"{name}, p99 {p99} ms limit {limit} ms;" in text


def test_a_limit_of_the_load_is_a_limit(loaded, tmp_path):
    """As in the command to repeat the best, which states no `serving.tpot_ms`."""
    rows = [row | {"tpot_limit_s": None} for row in loaded]
    effective = {"resolved": {"serving.tpot_ms": None, "serving.load.tpot_ms": 50.0, "serving.load.ttft_ms": None}}
    text = html_report(rows, effective, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "limit 50 ms" in text
    assert "no limit was stated" not in text.split("Time to the first token")[0]


def test_the_best_says_what_half_of_its_load_costs_and_what_has_no_spare(loaded, page):
    best = cheapest(rows_within_limits(loaded))
    assert best is not None
    (said,) = conclusions(loaded)
    half = number(2 * best["load_usd_per_million_tokens"])
    assert f"At half this load on average: about {half} $." in said
    assert f"At half this load on average, a million answer tokens cost about ${half}." in page(loaded, 20.0)
    one = best | {"load_decode_gpus": best["ep"], "load_prefill_gpus": 2 * best["prefill_ep"]}
    assert list(spare_sentences(one, "a")) == ["a: one failed GPU stops decoding: no other group takes over."]
    both = one | {"load_prefill_gpus": best["prefill_ep"]}
    assert list(spare_sentences(both, "a")) == [
        "a: one failed GPU stops decoding or prefill: no other group takes over."
    ]
    assert not list(spare_sentences(both | {"load_decode_gpus": 2 * best["ep"], "load_prefill_gpus": 4096}, "a"))


def test_rows_that_are_not_simulated_are_counted_apart(loaded, page):
    best = cheapest(rows_within_limits(loaded))
    dear = [row if row is best else row | {"load_decode_gpus": None, "in_time": False, "fits": True} for row in loaded]
    text = page(dear, 20.0)
    assert f"Not simulated, because another size provably costs less: {len(loaded) - 1} rows." in text
    assert "are not in time" not in text


def test_rows_of_several_loads_are_several_jobs(loaded, page):
    other = [row | {"serving.load.rate": 40.0, "load_requests_per_s": 41.0} for row in loaded]
    alone = [row | dict.fromkeys(row.keys() - found_without_load(row), None) for row in loaded]
    text = page([*(row | {"serving.load.rate": 20.0} for row in loaded), *other, *alone])
    for job in ("rate 20", "rate 40", "without a load"):
        assert f"mixtral-8x7b, {job}: best by" in text
    assert "rate -" not in text


def found_without_load(row):
    return {name for name in row if name not in ("in_slo", "in_slo_limit") and not name.startswith("load_")}


def test_fabrics_whose_dollars_lack_links_between_groups_do_not_rank(loaded, page):
    cheap = [row | {"fabric": name, LOAD_USD: 0.001} for name in ("torus", "full-mesh") for row in loaded[:3]]
    best = check_same_answer(loaded + cheap, page(loaded + cheap, 20.0), "answer tokens at 20 requests/s")
    assert best == cheapest(rows_within_limits(loaded))
    lack = "the dollars lack the links that carry caches from prefill to decode groups"
    assert f"Not ranked, because {lack}: torus and full-mesh." in page(loaded + cheap, 20.0)
    *_, said = conclusions(loaded + cheap)
    assert said == f"Not ranked, because {lack}: torus and full-mesh."
    alone = [row | {"fabric": "torus"} for row in loaded if row["fabric"] == "mfabric"]
    (_, said) = conclusions(alone)
    assert said == f"torus: {lack}."
    assert f"torus: {lack}." in page(alone, 20.0)
    assert re.search(r"(Best|Equal) by dollars a token at this load: torus, ", page(alone, 20.0))
    unpriced = [row | {"fabric": "nvl72", LOAD_USD: None} for row in loaded[:1]]
    assert cheapest(rows_within_limits(alone + unpriced))["fabric"] == "torus"
    assert f" torus: {lack}." in page(alone + unpriced, 20.0)
    assert "the dollars lack" not in page(loaded, 20.0)
