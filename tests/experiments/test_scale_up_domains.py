"""A small model on scale-up domains against NVLink's share by hand; table and figure from rows made by hand."""

import pytest

from experiments import scale_up_domains
from experiments.scale_up_domains import PICTURE, Config, run, table
from mfabric_jax.report import style
from tests.small import only


@pytest.fixture(scope="module")
def rows():
    """Mixtral, whose groups of 8 fit a domain: all-to-alls stay on NVLink. Here it stands for the published model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scale_up_domains, "PUBLISHED_MODEL", "mixtral-8x7b")
        return list(run(Config(model="mixtral-8x7b", gpu_tbps=(8.0, 16.0), efficiency=(0.25, 0.5), micro_batches=1)))


def test_all_to_alls_take_as_long_as_nvlink_is_slow_and_compute_half_at_twice_the_rate(rows):
    # A GPU's bandwidth but for 0.8 Tbps of Ethernet; half of that on mFabric.
    share = {(8.0, "nvl72"): 7.2, (8.0, "mfabric-cpo"): 3.6, (16.0, "nvl72"): 15.2, (16.0, "mfabric-cpo"): 7.6}
    for efficiency in (0.25, 0.5):
        sent = [
            only(rows, gpu_tbps=tbps, fabric=fabric, efficiency=efficiency)["ep_comm_s"] * nvlink
            for (tbps, fabric), nvlink in share.items()
        ]
        assert sent == pytest.approx([sent[0]] * 4, rel=1e-5)
        assert sent[0] > 0
    assert len(rows) == 2 * 2 * 2
    for row in rows:
        place = {key: row[key] for key in ("gpu_tbps", "efficiency")}
        one, other = (only(rows, **place, fabric=fabric) for fabric in ("nvl72", "mfabric-cpo"))
        assert row["speed_up"] == one["iteration_s"] / other["iteration_s"]
        assert 0.9 < row["speed_up"] < 1
        assert row["published"] == (1.3 if row["gpu_tbps"] == 8 else None)
    (slow,), (fast,) = ({row["compute_s"] for row in rows if row["efficiency"] == rate} for rate in (0.25, 0.5))
    assert slow == pytest.approx(2 * fast, rel=1e-5)
    assert Config().model == scale_up_domains.PUBLISHED_MODEL


def made(tbps, efficiency, speed_up, published=None):
    """NVL72 and mFabric, of which mFabric takes 10 s: parts without tensor parallelism and reconfigurations."""
    shared = {"gpu_tbps": tbps, "gpu": "B200-HGX", "efficiency": efficiency}
    shared |= {"speed_up": speed_up, "published": published}
    found = []
    for fabric, total in (("nvl72", 10.0 * speed_up), ("mfabric-cpo", 10.0)):
        parts = {"compute_s": 4.0, "tp_comm_s": 0.0, "dp_comm_s": 0.5, "reconfig_s": 0.0, "bubble_s": 1.0}
        parts["ep_comm_s"] = total - sum(parts.values())
        found.append({"fabric": fabric, "iteration_s": total} | parts | shared)
    return found


ROWS = [*made(8.0, 0.6, 1.25, 1.3), *made(8.0, 0.3, 1.5, 1.3), *made(16.0, 0.6, 0.8), *made(16.0, 0.3, 1.1)]


def test_the_table_and_verdicts_by_hand():
    breakdown, ratios = (part.splitlines() for part in table(ROWS).split("\n\n"))
    lines = [line.split() for line in breakdown]
    assert [line[1] for line in lines[2:]] == ["nvl72", "mfabric-cpo"] * 2  # at 0.6, nearest one half
    assert list(map(float, lines[2][2:])) == [12.5, 4, 7, 0.5, 1, 1.25, 1.3]
    assert list(map(float, lines[5][2:-1])) == [10, 4, 4.5, 0.5, 1, 0.8]
    assert lines[5][-1] == "-"
    assert ratios[1].split() == ["gpu_tbps", "60%", "30%"]
    assert [list(map(float, line.split())) for line in ratios[3:]] == [[8, 1.25, 1.5], [16, 0.8, 1.1]]
    lines = scale_up_domains.verdicts(ROWS)
    claim = "time of NVL72 over mFabric, {} Tbps a GPU, {}"
    assert [(line.claim, line.found, line.published, line.word) for line in lines] == [
        (claim.format(8, "60% of peak"), "1.25", "1.30", "reproduced"),
        (claim.format(8, "30% to 60%"), "1.25 to 1.50", None, "measured"),
        (claim.format(16, "60% of peak"), "0.80", None, "measured"),
        (claim.format(16, "30% to 60%"), "0.80 to 1.10", None, "measured"),
    ]
    slow = scale_up_domains.verdicts([row | {"speed_up": 1.2} for row in ROWS])
    assert slow[0].word == "differs by -8%"


def test_published_speed_ups_are_dashed():
    with style.look():
        (speeds,) = PICTURE.build(ROWS).axes
    lines = [(line.get_linestyle(), set(zip(*line.get_data(), strict=True))) for line in speeds.get_lines()]
    assert lines[0] == ("-", {(0.3, 1.5), (0.6, 1.25)})
    assert lines[2] == ("--", {(0.3, 1.3), (0.6, 1.3)})
