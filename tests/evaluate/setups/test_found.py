"""Found set-ups on disk, and cases that a search has settled."""

import pathlib
import shutil

import pytest

from mfabric_jax import Case, cases, resolve, simulate
from mfabric_jax.case.paths import flat
from mfabric_jax.evaluate.resolving import resolve as resolving
from mfabric_jax.evaluate.setups import found
from mfabric_jax.evaluate.setups.search import SetUpSearch
from mfabric_jax.workload.space import SetUp
from tests.small import model_file

TINY = {
    **{"gpu.name": "H100-SXM", "gpu.gpus_per_server": 2, "job.parallel.gpus": 4, "job.batch.global_batch": 8},
    **{"job.parallel.pp": 1, "job.parallel.cp": 1, "job.batch.micro_batch": 1, "job.overlap": "none"},
    **{"job.search": "each", "network.fabric": "fat-tree", "network.nic_gbps": 400.0, "job.batch.sequence": 512},
}


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A case with an open set-up whose search is counted, with an empty folder for results."""
    monkeypatch.setenv("MFABRIC_PROGRAMS", str(tmp_path / "kept"))
    monkeypatch.setattr(found, "_memory", {})
    searches, search = [], SetUpSearch.find

    def counted(self, *seeds):
        searches.append(self.base)
        return search(self, *seeds)

    monkeypatch.setattr(SetUpSearch, "find", counted)
    file = model_file(tmp_path / "model.toml", heads=(8, 8, 64), hidden=512, blocks=4, expert_hidden=256)
    return Case().with_(TINY | {"model.name": file}), searches


def anew(case):
    """What a new process finds."""
    found._memory.clear()
    resolving.resolve_without_jax.cache_clear()
    resolving.resolve.cache_clear()
    return resolve(case).searched


def kept():
    return sorted(found.folder().glob("*.json"))


def test_the_same_question_is_searched_once(tiny):
    case, searches = tiny
    first = anew(case)
    assert len(searches) == 1
    assert anew(case) == first
    assert len(searches) == 1
    assert len(kept()) == 1
    assert first.best == first.runners[0].set_up
    assert isinstance(first.best, SetUp)  # also as read from its file


def test_another_question_is_searched_anew(tiny):
    case, searches = tiny
    anew(case)
    anew(case.with_({"job.training_tokens": 1e9}))  # nothing of an iteration
    assert len(searches) == 1
    for count, changes in enumerate(({"network.nic_gbps": 100.0}, {"gpu.memory_gigabytes": 40.0}), 2):
        anew(case.with_(changes))
        assert len(searches) == count


def test_another_fabric_starts_from_what_was_found_without_sharing(tiny):
    case, searches = tiny
    there = anew(case.with_({"network.fabric": "mfabric"}))
    assert [base.network.fabric for base in searches] == ["fat-tree", "mfabric"]
    assert there.seconds <= there.one_s
    one = anew(case.with_({"network.fabric": "mfabric", "job.search": "one"}))
    assert len(searches) == 2
    assert one == anew(case)


def test_a_damaged_file_is_searched_again(tiny):
    case, searches = tiny
    first = anew(case)
    for damaged in (b'{"runners": 3}', kept()[0].read_bytes()[:-20]):
        kept()[0].write_bytes(damaged)
        before = len(searches)
        assert anew(case) == first
        assert len(searches) == before + 1


def test_a_changed_file_is_another_question(tiny):
    case, searches = tiny
    anew(case)
    model_file(pathlib.Path(case.model.name), heads=(4, 4, 64), hidden=512, blocks=4, expert_hidden=256)
    anew(case)
    assert len(searches) == 2
    assert len(kept()) == 2


def test_prices_are_no_part_of_the_question_but_the_delay_of_a_switch_is(tiny, tmp_path):
    case, searches = tiny
    optical = case.with_({"network.fabric": "mfabric"})
    priced = tmp_path / "prices.toml"
    for usd in (30000, 20000):
        priced.write_text(f"gpus.H100-SXM.usd = {usd}\n[ocs.own]\nports = 64\ndelay_s = 0.01\nusd_per_port = {usd}\n")
        anew(optical.with_({"network.prices": str(priced)}))
        assert len(searches) == 2  # also on the fat-tree
    optical = optical.with_({"network.prices": str(priced), "circuits.ocs": "own"})
    for count, (delay_s, usd) in enumerate(((0.01, 100), (0.02, 100)), 3):
        priced.write_text(f"[ocs.own]\nports = 64\ndelay_s = {delay_s}\nusd_per_port = {usd}\n")
        anew(optical)
        assert len(searches) == count
        priced.write_text(priced.read_text().replace("= 100", "= 900"))
        anew(optical)
        assert len(searches) == count


def test_nothing_is_kept_where_programs_are_not(tiny, monkeypatch):
    case, searches = tiny
    before = kept()
    monkeypatch.setenv("MFABRIC_PROGRAMS", "off")
    assert found.folder() is None
    first = anew(case)
    assert anew(case) == first
    assert len(searches) == 2
    monkeypatch.undo()
    assert before == []


def test_a_folder_that_cannot_be_written_is_no_obstacle(tiny, tmp_path, monkeypatch):
    case, searches = tiny
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("MFABRIC_PROGRAMS", str(tmp_path / "file"))
    assert anew(case).seconds > 0
    shutil.rmtree(tmp_path / "kept", ignore_errors=True)
    assert len(searches) == 1


def test_a_settled_case_has_a_set_up_for_each_bandwidth(tiny):
    case, searches = tiny
    asked = cases(case, {"network.nic_gbps": (100.0, 400.0)})
    words = []
    settled = found.settle(asked, words.append)
    assert [block.case.network.nic_gbps for block in settled.blocks] == [100.0, 400.0]
    assert len(searches) == len(words) == 2
    for block in settled.blocks:
        best = resolve(case.with_({"network.nic_gbps": block.case.network.nic_gbps})).searched.best
        values = flat(block.case)
        assert values["job.search"] == "recipe"
        for path, field in resolving.SEARCHED.items():
            assert values.get(path) in (getattr(best, field), None), path
        assert not resolving.is_open(block.case)
        assert {path for path in values if settled.sources.get(path) == "search"} >= {
            *("job.parallel.tp", "job.parallel.ep", "job.schedule", "job.recompute")
        }
    again = len(searches)
    assert found.settle(settled) is settled
    assert len(searches) == again


def test_what_a_case_states_stays(tiny):
    case, searches = tiny
    stated = {"job.parallel.ep": 2, "job.recompute": "norm", "job.dispatcher": "nccl"}
    settled = found.settle(cases(case.with_(stated)))
    (block,) = settled.blocks
    values = flat(block.case)
    assert {path: values[path] for path in stated} == stated
    assert not {*stated} & {path for path, source in settled.sources.items() if source == "search"}
    assert len(searches) == 1


def test_a_settled_case_gives_the_rows_that_were_found(tiny):
    case, _ = tiny
    best = anew(case)
    (row,) = simulate(found.settle(cases(case))).rows()
    assert row["iteration_s"] == pytest.approx(best.seconds, rel=1e-6)
    (row,) = simulate(cases(case)).rows()
    assert row["iteration_s"] == pytest.approx(best.seconds, rel=1e-6)


def test_cases_without_an_open_set_up_are_left_alone(tiny):
    case, searches = tiny
    plain = cases(case.with_({"job.search": "recipe"}))
    assert found.settle(plain) is plain
    assert searches == []
