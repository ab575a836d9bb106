"""What readers leave out of a file is named, what cannot be is refused, and every sentence names the file."""

import re
import warnings

import numpy as np
import pytest

from mfabric_jax.checks import InputError, Misfit, in_file
from mfabric_jax.report import compared, read_rows
from mfabric_jax.report.kinds import KINDS
from mfabric_jax.support.unread import Unread
from mfabric_jax.traffic import open_trace
from tests.fuzz_files import answered
from tests.fuzz_foreign import COUNTS
from tests.fuzz_inputs import READERS
from tests.mistakes import check_refused, refused

NAMED = [  # reader, what stands in its good file, what stands there instead, words on standard error
    ("graph of NCCL", 'gdr="1"', 'gdr="--"', "gdr='--' of gpu (no GPUDirect"),
    ("graph of NCCL", "GenuineIntel", "GenuineIntl", "vendor='GenuineIntl' of cpu"),
    ("graph of networkx", '"graph": {', '"graph": {"capacity_gbps": 100, ', "attributes of the graph"),
    ("Chakra's feeder", '"runtime"', '"run_time"', "attributes of nodes are not read"),
    ("Chakra's feeder", '{"workload_graph"', '{"zz": 1, "workload_graph"', "trace.0.json': fields are not read"),
    ("recording run.json", '{"axes"', '{"scale": 2, "axes"', "entries beside counts are not read"),
    ("recording of a router trace", '"num_tokens"', '"weights": [1], "num_tokens"', "number: weights."),
    ("recording of a router trace", '"stage"', '"stages"', "'run.jsonl': fields are not read"),
    ("recording LAER-MoE", "token_num\n", "token_num,zz\n", "columns are not read"),
    ("placement of EPLB", '"logcnt"', '"log_cnt"', "number: log_cnt."),
    ("placement of vLLM-Ascend", '"device_count"', '"devices"', "number: devices."),
    ("requests of BurstGPT", "Model", "Modell", "columns are not read, though they could change a number: Modell"),
    (
        "requests of Mooncake",
        '"hash_ids"',
        '"hash_id"',
        "columns are not read, though they could change a number: hash_id",
    ),
    ("nccl-tests as JSON", '"in_place"', '"inplace"', "fields of results are not read"),
    ("DeepEP", "Best dispatch", "Best dispach", "lines are not read"),
    ("packet run", '"hop_latency_s"', '"hop_latency_us"', "incast.json: fields are not read"),
    ("packet run", '"ndp"', '"ndp2"', "no constants of the transport 'ndp2' are known (none, ndp, dctcp)"),
]
REFUSED = [
    (
        "Chakra's feeder",
        '"is_cpu_op": true',
        '"is_cpu_op": "text"',
        "must have true or false for is_cpu_op, got 'text'",
    ),
    ("SimAI workload", "first -1", "first inf", "for the dependency, got 'inf'"),
    ("tasks.json", '"match": 0, "after"', '"after"', "task 2 of 'job.json' waits for a message"),
    ("graph of networkx", '"graph": {"name": "mine"}', '"graph": 5', "graph must be a table of attributes, got 5"),
    ("recording EPLB weights", '"weight"', '"weights"', "must have the key 'tokens', got weights; also read"),
    ("recording EPLB weights", "[[", '"text", [[', "run.json"),
    ("recording run.json", '"axes": [', '"axes": 5, "b": [', "axes of trace run.json must be a list of names"),
    ("recording run.json", '"layer"', '"layeer"', "'run.json': axis 'layeer' is unknown"),
    ("recording run.csv", "0,0,0,0,0,", "0,0,0,0,0,-", "'run.csv': tokens must be finite and not negative, got -"),
    ("recording of a router trace", '"topk": 2', '"topk": 2, "topk": 2', "line 1 of router trace run.jsonl"),
    (
        "placement of vLLM-Ascend",
        '"device_count": 2',
        '"device_count": 3',
        "device_count must be 2, the number listed",
    ),
    ("placement of vLLM-Ascend", '"moe_layer_count": 1', '"moe_layer_count": 0', "p.json: moe_layer_count must be 1"),
    ("requests of Azure", ",310,", ",310,9,", "line 2 must have 3 columns, like its header, got 4"),
    ("requests of BurstGPT", "Model", "Timestamp", "must have the column 'timestamp' once, got it 2 times"),
    ("requests of Mooncake", '"timestamp": 0', '"timestamp": 5, "timestamp": 0', "it has the key 'timestamp' twice"),
    (
        "nccl-tests",
        "time   algbw",
        "ime   algbw",
        "the table must have the column size, and columns time, algbw, busbw side by side",
    ),
    ("perftest", "RDMA_Write BW", "RDMA_Write Bidirectonal BW", "that counts both directions must say Bidirectional"),
    ("perftest as JSON", '"test": ', '"tests": ', "test of test_info must be the name of the test, got None"),
    ("DeepEP, low latency", "| Combine bandwidth", "| Combine bandwidt", "a direction must say its GB/s and avg_t"),
    ("DeepEP", "notify:", "notfy:", "a best result must say GB/s and us"),
    ("sweep of all-to-alls", "high = 400", "hig = 400", "sweep.toml': random.nic_gbps must be"),
    (
        "case.json",
        '"policy": "greedy"',
        '"policy": [1]',
        "case.json: circuits.policy must be the name of a policy, or a function",
    ),
    ("case.json", '"ep": 16', '"ep": 12', "case.json: job.parallel.ep must divide"),
    ("case with variants", "draws = 2", "drawz = 2", "'space.toml': setting of [sweep] 'drawz' is unknown"),
    ("jobs on links", "[links]", "[linkz]", "'jobs.toml'"),
]


@pytest.fixture
def answer(tmp_path, monkeypatch):
    """What a reader makes of its good file with one text replaced."""

    def answer(name, old, new):
        one, folder = READERS[name], tmp_path / "read"
        folder.mkdir()
        one.write(folder)
        text = (folder / one.file).read_text()
        assert old in text
        (folder / one.file).write_text(text.replace(old, new))
        monkeypatch.chdir(folder)  # and back, when the test ends
        return answered(one, folder)

    return answer


@pytest.mark.parametrize(("name", "old", "new", "words"), NAMED)
def test_what_is_not_read_is_named(name, old, new, words, answer):
    found = answer(name, old, new)
    assert (found.status, words in found.said) == (0, True), found.said


@pytest.mark.parametrize(("name", "old", "new", "words"), REFUSED)
def test_what_cannot_be_is_one_sentence_that_names_the_file(name, old, new, words, answer):
    found = answer(name, old, new)
    assert (found.status, words in found.said) == (2, True), found.said
    assert len(re.findall("^mfabric: ", found.said, re.M)) == 1
    assert READERS[name].file.split("/")[-1].split(".")[0] in found.said


@pytest.mark.parametrize("name", ["graph of NCCL", "recording of a router trace", "packet run", "requests of Mooncake"])
def test_nothing_of_a_good_file_is_named(name, answer):
    assert "not read" not in answer(name, "1", "1").said


def test_a_mistake_gets_the_name_of_its_file_once_and_keeps_its_kind():
    def raising(kind, sentence):
        with in_file("a.toml"):
            raise kind(sentence)

    assert refused(raising, InputError, "skew must be a number.") == "'a.toml': skew must be a number."
    assert refused(raising, InputError, "skew of a.toml must be a number.") == "skew of a.toml must be a number."
    with pytest.raises(Misfit, match=r"'a\.toml': too many"):
        raising(Misfit, "too many.")


def test_what_a_damaged_archive_opened_is_closed(tmp_path):
    np.savez(tmp_path / "run.npz", tokens=COUNTS)
    data = (tmp_path / "run.npz").read_bytes()
    (tmp_path / "run.npz").write_bytes(data[: len(data) // 2])
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        check_refused("must be a readable NumPy file", open_trace, tmp_path / "run.npz")


# ----------------------------------------------------------------------------------------------------------------- rows
RUN = '{"config": {"resolved": {}, "schema": 1}, "files": {}}\n'


@pytest.fixture
def journal(tmp_path):
    def read(*lines):
        (tmp_path / "rows.csv.journal").write_text(RUN + "".join(lines))
        return read_rows(tmp_path / "rows.csv")[0]

    return read


def line(number, row):
    return f'{{"number": {number}, "rows": [{row}]}}\n'


def test_a_row_of_a_journal_holds_what_a_table_can(journal):
    good = line(0, '{"fabric": "torus", "iteration_s": 1.5}')
    for row, words in (
        ('{"fabric": "torus", "iteration_s": [1]}', "column iteration_s of .* must hold numbers, texts, true or false"),
        ('{"fabric": 5, "iteration_s": 2}', "column fabric of .* must hold values of one kind, got numbers and texts"),
        (f'{{"iteration_s": {2**63}}}', "column iteration_s of .* must hold numbers, texts"),
        ('{"iteration_s": "slow"}', "column iteration_s of .* must hold"),
    ):
        check_refused(words, journal, good, line(1, row))
    assert len(journal(good, line(1, '{"fabric": null, "iteration_s": 2}'), '{"number": 2, "rows": [')) == 2


def test_rows_behind_a_damaged_line_of_a_journal_are_not_dropped_in_silence(journal):
    lines = line(0, '{"iteration_s": 1}'), "{\n", line(2, '{"iteration_s": 1}')
    check_refused("line 3 of .*rows.csv.journal' is damaged; run the same command again", journal, *lines)


def test_a_band_of_which_an_end_is_missing_is_none():
    class Half:
        def value(self, model, series, gbps, column):
            return None if column == "high_s" else 2.0 if column == "low_s" else 3.0

    assert compared.Measure("speed", "perf_per_dollar", "", more_is_better=True).spread(Half(), "m", None, 1.0) is None


def test_tables_of_a_configuration_are_tables(tmp_path):
    (tmp_path / "rows.csv").write_text("fabric,iteration_s\ntorus,1\n")
    for field, words in (("not_known", "a list, got 0"), ("stated", "a table, got 0"), ("files", "a table, got 0")):
        (tmp_path / "rows.config.json").write_text(f'{{"{field}": 0}}')
        check_refused(
            f"{field} of the configuration in .*rows.config.json' must be {words}", read_rows, tmp_path / "rows.csv"
        )


def test_a_column_that_no_command_writes_is_said(journal):
    with pytest.warns(Unread, match=r"no command writes the columns iteration_ss; were they renamed\?"):
        journal(line(0, '{"iteration_ss": 1, "fabric": "torus", "network.nic_gbps": 4}'))


def test_columns_that_may_hold_text_are_no_columns_of_numbers():
    declared = {name: column for kind in KINDS for name, column in KINDS[kind].items()}
    numbers = {name for name, column in declared.items() if column.is_number}
    assert {"mean", "median", "utilisation", "flows", "memory_buffers_gb"} <= numbers
    assert not {"expert_load", "fabric", "held_by", "when", "note", "faster_by", "kv_hot_pair"} & numbers
