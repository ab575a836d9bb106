"""Names of 0.1 lead to their places or say why they are gone; its sweep files are read, or refused with the place."""

import pytest

from mfabric_jax.case import Cases, load
from mfabric_jax.case.layers import layers_of, merged
from mfabric_jax.case.old import GONE, VALUES, WHERE, now
from mfabric_jax.case.paths import check, get, settings
from mfabric_jax.simulation import resolve
from tests.mistakes import refused

# Of compare, timeline, export, failures, clusters and sweeps of iterations.
OPTIONS = """
    gpu dp tp pp ep gpus micro_batch micro_batches bubble sequence schedule chunks overlap_passes recompute
    precision dispatch_bytes combine_bytes grad_bytes cp tp_reduces sharding head optimizer_step redundant_experts
    dispatch node_limit capacity_factor nics pxn tiers optical_degree electrical_nics gpu_tbps goodput transport
    prices ocs delay_s each_s reactivation_s path_radix busy wiring link_delay_s policy rule routing first
    predictor scenarios sigma plan_on decision_s partial reconfiguration_cost cold_start flows circuit_flows
    placement placement_groups placed_on placed_window replace_every trace records axes traffic skew drift drawn
    iterations replicas matrices compute efficiency compute_precision expert_load expert_tile combine_start
    measured_iteration_s measured_on measured_nic_use measured_gbps nvswitch_gigabytes_per_s eps_waits
    overlap_parts dp_overlap comm_cores seed dtype models fabrics nic_gbps nic_use circuits_for variants model
    fabric kinds stage server at radix nvswitches rates checkpoint_interval_s restart_s sample servers
"""
OPTIONS = tuple(OPTIONS.split())


@pytest.mark.parametrize("option", OPTIONS)
def test_every_old_option_leads_somewhere(option):
    said = now(option)
    assert said
    if option in GONE:
        return
    path, _, value = WHERE[option].partition("=")
    if path != "job.precision":  # a table, in one word
        setting = settings()[path]
        assert not value or check(setting, value) == value
        for new in VALUES.get(option, {}).values():
            assert new is None or check(setting, new) == new


def read(**given) -> Cases:
    with pytest.warns(UserWarning, match="space.toml is a sweep file of 0.1: it is read as preset"):
        return merged(layers_of(given, "space.toml", typed=True))


def test_a_sweep_file_is_read_as_it_was():
    found = read(
        fixed={"model": "llama-moe", "fabric": "mfabric", "eps_waits": True, "first": "predict", "sigma": 0.2},
        grid={"nic_gbps": [100, 400], "matrices": ["each", "block"]},
    )
    assert len(found) == 4
    (case, *_) = found
    assert {path: get(case, path) for path in ("circuits.packets_wait", "circuits.turn", "circuits.predict.sigma")} == {
        **{"circuits.packets_wait": True, "circuits.turn": "predict", "circuits.predict.sigma": 0.2}
    }
    assert [get(one, "traffic.alike") for one in found] == ["nothing", "nothing", "micro-batches", "micro-batches"]
    assert (case.model.recipe, case.network.tiers) == ("paper", 3)
    job = resolve(case).job
    assert (job.gpus, job.pp, job.ep, job.micro_batches, job.micro_batch) == (1024, 4, 16, 4, 8)
    assert get(case, "compute.calibrated") == "paper"


RATES = {  # what was said: rate, NVLink, micro-batches
    "": ("calibrated", 900, 4),
    "gpu": ("efficiency", 450, 4),
    "efficiency": ("efficiency", 900, 4),
    "micro_batches": ("calibrated", 900, 12),
}


@pytest.mark.parametrize("said", RATES)
def test_defaults_that_hung_on_each_other(said):
    given = {"gpu": "H100-SXM", "efficiency": 0.4, "micro_batches": 12}
    (case,) = read(fixed={"fabric": "fat-tree"} | {name: value for name, value in given.items() if name == said})
    whole = resolve(case).case
    got = (get(whole, "compute.rate"), whole.gpu.nvlink_gigabytes_per_s, whole.job.batch.micro_batches)
    assert got == RATES[said]
    (today,) = read(preset="today", fixed={"fabric": "fat-tree"})
    assert (today.job.batch.bubble, today.job.head, get(today, "compute.calibrated")) == (0.15, True, "today")


def test_what_has_no_one_place_is_refused_with_the_new_one():
    for given, sentence in (
        ({"evaluate": "all-to-all"}, "evaluate 'all-to-all' is no case; only 'iteration' is read."),
        ({"list": {"seed": [1]}}, "values side by side, [list], stand as tables of [[variants]] now"),
        ({"fixed": {"electrical_nics": 3}}, "electrical_nics has no place of its own here: network.nics is all NICs"),
        ({"fixed": {"placed_window": 3}}, "placed_window has no place of its own here: did you mean --set placement."),
        ({"fixed": {"model": "qwen-moe:ep=16"}}, "model 'qwen-moe:ep=16' had a set-up of its own; write model and job"),
        ({"fixed": {"nonsense": 3}}, "nonsense is no setting of 0.1."),
        ({"fixed": {}, "preset": "mine"}, "preset must be paper, released, today, got 'mine'."),
    ):
        got = refused(lambda given=given: layers_of(given, "space.toml"))
        assert got.startswith(f"space.toml is a sweep file of 0.1: {sentence}")


def test_what_was_drawn_keeps_its_ranges(tmp_path):
    layers = layers_of
    with pytest.warns(UserWarning, match="0.1"):
        *_, layer = layers({"random": {"delay_s": {"low": 0.1, "high": 1}}, "fixed": {}, "draws": 3}, "space.toml")
    assert (dict(layer.random), dict(layer.sweep)) == (
        {"circuits.delay_s": {"low": 0.1, "high": 1}},
        {"draws": 3},
    )
    (tmp_path / "now.toml").write_text("run.seed = 3")
    assert load(tmp_path / "now.toml").run.seed == 3
