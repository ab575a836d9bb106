"""What cannot be served is refused in a sentence that names the field."""

import json

import pytest

from mfabric_jax.apps.serving import deployment, family
from mfabric_jax.case import Case
from mfabric_jax.workload.dispatch_kernels import package_families
from tests.mistakes import refused

SERVED = {"model.name": "deepseek-v3", "network.fabric": "fat-tree", "gpu.name": "H100-SXM"}

CASES = [
    ({"serving.ep": 36}, "serving.ep must fill servers of 8 GPUs on fat-tree: a multiple of 8, got 36."),
    (
        {"serving.prefill.ep": 12},
        "serving.prefill.ep must fill servers of 8 GPUs on fat-tree: a multiple of 8, got 12.",
    ),
    (
        {"serving.kernels": "nvlink-one-sided"},
        "serving.kernels nvlink-one-sided work inside one domain of 8 GPUs on fat-tree, got serving.ep 32.",
    ),
    (
        {"serving.redundant_experts": 7},
        "serving.redundant_experts must fill the 32 GPUs of serving.ep evenly with 256 experts: 0, 32, ..., got 7.",
    ),
    ({"serving.kernels": "deepep-v3"}, "serving.kernels 'deepep-v3' is unknown"),
    ({"serving.drafts.tokens": 1, "serving.drafts.accepted": 1.5}, "serving.drafts.accepted must be at most"),
    ({"serving.tp": 3}, "serving.tp must divide the GPUs of a server and serving.ep, got 3."),
    (
        {"serving.tp": 8, "serving.prefill.ep": 4},
        "serving.tp must divide the GPUs of a server and serving.prefill.ep, got 8.",
    ),
    ({"serving.experts": "trace"}, "serving.experts trace needs traffic.trace.path"),
    ({"serving.formats.weights": "nvfp4"}, "weights nvfp4 need a GPU of the Blackwell family, got H100-SXM."),
    ({"network.fabric": "twisted-torus", "serving.ep": 64}, "network.fabric twisted-torus needs"),
]


@pytest.mark.parametrize(("changes", "sentence"), CASES)
def test_what_does_not_go_together(changes, sentence):
    def asked():
        served = deployment(Case().with_(SERVED | changes))
        served.decoding(served.numbers)

    assert sentence in refused(asked)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"serving.drafts.accepted": -0.5}, "serving.drafts.accepted"),
        ({"serving.prefill.cached": 1.0}, "serving.prefill.cached"),
        ({"serving.formats.cache": "nvfp4"}, "serving.formats.cache"),
        ({"serving.ep": 0}, "serving.ep"),
    ],
)
def test_settings_that_no_case_takes(changes, sentence):
    assert sentence in refused(Case().with_, SERVED | changes)


def test_a_gpu_whose_memory_is_not_known(tmp_path):
    file, facts = tmp_path / "mine.json", {"bf16_tflops": 1000, "nvlink_gigabytes_per_s": 450, "source": "a test"}
    case = Case().with_(SERVED | {"gpu.name": str(file)})
    file.write_text(json.dumps({"name": "mine"} | facts))
    assert "serving needs gpu.memory_gigabytes_per_s" in refused(lambda: deployment(case))
    file.write_text(json.dumps({"name": "mine", "memory_gigabytes_per_s": 3000} | facts))
    served = deployment(case)
    assert "serving needs gpu.memory_gigabytes," in refused(lambda: served.most_requests(4096.0))


FILES = [
    ({"copies": "expert"}, "kernels need copies (expert, gpu or server) and a table dispatch."),
    ({"dispatch": {}}, "kernels need copies (expert, gpu or server) and a table dispatch."),
    ({"copies": "rank", "dispatch": {}}, "copies 'rank' is unknown"),
    ({"copies": "gpu", "dispatch": {}, "reach": "rack"}, "reach 'rack' is unknown"),
    ({"copies": "gpu", "dispatch": {"nic": 1.2}}, "dispatch.nic"),
    ({"copies": "gpu", "dispatch": {"nic": 0}}, "dispatch.nic"),
    ({"copies": "gpu", "dispatch": {"alpha_us": -1}}, "dispatch.alpha_us"),
    ({"copies": "gpu", "dispatch": {"alpha_us": "ten"}}, "dispatch.alpha_us"),
    ({"copies": "gpu", "dispatch": {"alpha_s": 1}}, "field of dispatch 'alpha_s' is unknown"),
    ({"copies": "gpu", "dispatch": 3}, "dispatch must be a table of a kernel's numbers, got 3."),
    ({"copies": "gpu", "dispatch": {}, "combine": {"like": "other"}}, "combine.like 'other' is unknown"),
    ({"copies": "gpu", "dispatch": {}, "cores": 1}, "cores must be a fraction of a GPU's cores, at least 0 and"),
    ({"copies": "gpu", "dispatch": {}, "header": 1}, "field of kernels 'header' is unknown"),
]


@pytest.mark.parametrize(("table", "sentence"), FILES)
def test_files_of_kernels(tmp_path, table, sentence):
    file = tmp_path / "own.json"
    file.write_text(json.dumps(table))
    said = refused(family, str(file))
    assert sentence in said
    assert "own.json" in said


def test_a_file_that_is_not_there():
    assert "none.toml" in refused(family, "none.toml")


def test_a_file_of_ones_own_is_a_family(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        'copies = "gpu"\nheader_bytes = 8\n[dispatch]\nalpha_us = 7\nnic = 0.5\n'
        '[combine]\nlike = "dispatch"\nnic = 0.25\n'
    )
    own = family(str(file))
    assert (own.name, own.copies, own.cores, own.reach) == ("mine", "gpu", 0, "any")
    assert own.dispatch.alpha_s == own.combine.alpha_s == 7e-6
    assert (own.dispatch.nic, own.combine.nic, own.combine.nvlink) == (0.5, 0.25, 1)
    assert own.wire_bytes(128, "fp8") == 128 + 4 + 8
    assert own.wire_bytes(128, "bf16", combine=True) == 256
    served = deployment(Case().with_(SERVED | {"serving.kernels": str(file)}))
    assert served.decode.family == own


def test_the_first_release_differs_from_the_second_inside_servers_alone():
    first, second = package_families()["deepep-low-latency-rdma"], package_families()["deepep-low-latency"]
    assert (first.inside, second.inside) == ("nic", "nvlink")
    assert first._replace(name="", inside="") == second._replace(name="", inside="")
