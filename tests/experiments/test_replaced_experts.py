"""Re-placed experts: waits and bytes by hand on a made-up artifact, and the gains that LAER-MoE measured."""

import csv

import numpy as np
import pytest

from experiments import replaced_experts
from experiments.replaced_experts import OURS, RANKS, SCRIPT, STATIC, VARIANTS, Config, ratios, run
from mfabric_jax import InputError

HOT = 1.5  # of every fourth rank, over the mean


def made(folder):
    """Two iterations of two layers: FSDP with a hot position, LAER even; all seconds 1, 2 and 4, or half of it."""
    with (folder / "token_analysis_backup.csv").open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["rank", "method", "model_name", "layer", "iter", "token_num"])
        for model in VARIANTS:
            for at in np.ndindex(RANKS, 2, 2):
                hot = 120 * (HOT if at[0] % 4 == 0 else (4 - HOT) / 3)
                for method, tokens in ((STATIC, hot), ("LAER", 120)):
                    out.writerow([at[0], method, model, at[1], at[2], round(tokens)])
    with (folder / "breakdown_analysis_backup.csv").open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["rank", "model_name", "method", "alltoall_time", "expert_time", "total_time"])
        for model in VARIANTS:
            for rank in range(RANKS):
                out.writerow([rank, model, STATIC, 1, 2, 4])
                out.writerow([rank, model, "LAER", 0.5, 2, 3])
    return str(folder)


def test_waits_and_bytes_by_hand(tmp_path):
    rows = list(run(Config(folder=made(tmp_path))))
    static = rows[0]
    assert (static["method"], static["busiest"]) == (STATIC, pytest.approx(HOT))
    # 2 x 8192 tokens, top 2, 3 products of 4096 x 14336; 2 chunks, 32 blocks, forward once and backward twice
    selections = 2 * 8192 * 2
    expert_s = 2 * 32 * 3 * selections * 2 * 3 * 4096 * 14336 / (0.5 * 312e12)
    assert static["expert_s"] == pytest.approx(expert_s)
    crossing_s = 2 * 32 * 4 * selections * 4096 * 2 * 3 / 4 * HOT / 300e9
    assert static["alltoall_s"] == pytest.approx((HOT - 1) * expert_s + crossing_s)
    by_method = {row["method"]: row for row in rows[:3]}
    assert by_method["LAER"]["busiest"] == 1
    assert by_method[OURS]["busiest"] == pytest.approx(1.2)
    laer = next(row for row in ratios(rows) if row["re-placed by"] == "LAER")
    assert laer["measured_alltoall_s"] == 2
    assert laer["total_s"] > 1
    assert "static over re-placed" in SCRIPT.table(rows)
    assert SCRIPT.draw(rows, tmp_path / "picture.png").stat().st_size > 5000


def test_a_folder_without_it_is_a_sentence(tmp_path):
    with pytest.raises(InputError, match=r"folder must hold token_analysis_backup\.csv \(or \.gz\)"):
        list(run(Config(folder=str(tmp_path))))


def test_measured_gains_are_foretold_within_an_eighth(shared_data):
    rows = list(run(Config(folder=str(shared_data / "laer_moe"))))
    measured = [row for row in ratios(rows) if row["measured_total_s"] is not None]
    assert len(measured) == 4
    for row in measured:
        for name in replaced_experts.SECONDS:
            assert row[name] == pytest.approx(row[f"measured_{name}"], rel=0.125), (row, name)
