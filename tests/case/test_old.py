"""Names of 0.1 lead to their places or say why they are gone."""

import pytest

from mfabric_jax.case.layers import layers_of
from mfabric_jax.case.old import GONE, WHERE, now
from mfabric_jax.case.paths import check, settings
from tests.docs_case import VALUES
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


def test_a_sweep_file_is_refused_with_the_places_of_its_settings():
    given = {"fixed": {"model": "llama-moe"}, "grid": {"delay_s": [0.1, 0.2]}, "draws": 3}
    said = refused(lambda: layers_of(given, "space.toml"))
    assert said.startswith("space.toml is a sweep file of 0.1; settings have paths now, a list of values is an axis")
    assert "model is model.name, delay_s is circuits.delay_s, draws is sweep.draws (docs/from_0.1.md)." in said
    assert [layer.name for layer in layers_of({"run.seed": 3}, "now.toml")] == ["now.toml"]
