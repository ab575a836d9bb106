"""The tree of settings: every path is documented, has one default and is stated alike everywhere; nothing computes."""

import subprocess
import sys
import typing

import msgspec
import pytest

from mfabric_jax import fabric, policies, units
from mfabric_jax.case import Case, load
from mfabric_jax.case.layers import SettingsLayer
from mfabric_jax.case.network import GRAPH
from mfabric_jax.case.paths import Leaf, SettingChoice, build, differences, flat, parts_of, read_statement, settings
from mfabric_jax.case.schema import SettingsGroup
from mfabric_jax.commands.help import groups
from mfabric_jax.evaluate.rules import SPANS
from mfabric_jax.traffic.placement import REGISTRY as PLACEMENTS
from mfabric_jax.traffic.predictor import REGISTRY as PREDICTORS
from mfabric_jax.workload.gpus import GPUS
from mfabric_jax.workload.schedules import SCHEDULES
from tests.mistakes import refused

PATHS = sorted(settings())


def inside(cls, prefix=""):
    """Every group, those in groups, too."""
    yield prefix, cls
    for field in msgspec.structs.fields(cls):
        if isinstance(field.type, type) and issubclass(field.type, SettingsGroup):
            yield from inside(field.type, f"{prefix}.{field.encode_name}")


def groups_of(cls):
    return {
        one.type
        for one in msgspec.structs.fields(cls)
        if isinstance(one.type, type) and issubclass(one.type, SettingsGroup)
    }


def literals(path):
    """The names that a setting may have."""
    setting = settings()[path]
    if isinstance(setting, SettingChoice):
        return set(setting.alternatives)
    return {value for one in parts_of(setting.kind) for value in typing.get_args(one) if isinstance(value, str)}


def another(setting):
    """A value that is not the default, as a file has it."""
    if isinstance(setting, SettingChoice):
        return next(name for name in reversed(setting.alternatives) if name != setting.default)
    for one in parts_of(setting.kind):
        if typing.get_origin(one) is typing.Literal:
            return next(value for value in typing.get_args(one) if value != setting.default)
        if one is bool:
            return not setting.default
        if typing.get_origin(one) is tuple:
            kinds = {int: [3, 5], str: ["gpu", "link"]}
            return next((value for kind, value in kinds.items() if kind in typing.get_args(one)), [1.0, 0.5])
        if one in (str, typing.Any):
            return "other"
        if one is int and setting.default != 7:
            return 7
        if one is float:
            return 2.5 if setting.default == float("inf") else 0.25
    raise AssertionError(setting)


def test_every_setting_is_documented_and_short():
    for path, setting in settings().items():
        assert setting.doc.endswith((".", ".)")), path
        assert path.count(".") <= 2, path
        assert all(alternative.__doc__ for alternative in getattr(setting, "alternatives", {}).values()), path


def test_no_group_has_more_than_16_names_beside_the_groups_in_it():
    names = {
        name: [one for one in msgspec.structs.fields(cls) if one.type not in groups_of(cls)]
        for name, cls in inside(Case)
    }
    assert {name: len(some) for name, some in names.items() if len(some) > 16} == {}
    assert set(groups()) == {path.partition(".")[0] for path in settings()}


@pytest.mark.parametrize("path", PATHS)
def test_a_setting_is_stated_alike_by_a_file_a_flag_and_in_python(path, tmp_path):
    setting = settings()[path]
    value = another(setting)
    written = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    written = (
        "3-5"
        if value == [3, 5]
        else "1+0.5"
        if value == [1.0, 0.5]
        else str(value).lower()
        if isinstance(value, bool)
        else written
    )
    file = tmp_path / "case.toml"
    text = f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
    file.write_text(f"{path} = {text}\n")
    python = Case().with_({path: tuple(value) if isinstance(value, list) else value})
    layer = SettingsLayer("flag", read_statement({path: written.split(",") if "," in written else written}, text=True))
    from_flag = build(layer.stated | ({setting.choice: setting.of} if getattr(setting, "choice", "") else {}))
    assert flat(python).get(path) == (tuple(value) if isinstance(value, list) else value)
    assert flat(python).get(path) != flat(Case()).get(path, object())
    assert from_flag == python
    others = {*fabric.NAMES, "graph", "on-graph"} - {"mfabric"}
    if path.startswith("network.") and path.split(".")[1] in others:  # of a fabric that is not chosen
        assert refused(load, file) == f"{path} is not read by any case here (mfabric); leave it out."
    elif path != "network.nic_use" and (path != "network.fabric"):
        assert load(file) == python


def test_a_case_is_immutable_and_equal_by_its_values():
    one = Case().with_({"circuits.predict.sigma": 0.3})
    assert one == Case().with_({"circuits": {"reconfigure": "predict", "predict": {"sigma": 0.3}}})
    assert hash(one) == hash(Case().with_({"circuits.predict.sigma": 0.3}))
    assert one != Case()
    assert differences(one) == {
        **{
            "circuits.reconfigure": "predict",
            "circuits.predict.sigma": 0.3,
            "circuits.predict.predictor": "moving-average",
        },
        **{"circuits.predict.scenarios": 8, "circuits.predict.both": False},
    }
    with pytest.raises(AttributeError):
        one.network.nic_gbps = 800.0
    assert one.with_({"circuits.reconfigure": "on-demand"}) == Case()


def test_names_are_those_that_there_are():
    assert literals("network.fabric") == {*fabric.NAMES, GRAPH}
    assert literals("placement.rule") == {*PLACEMENTS, "file"}
    assert literals("circuits.predict.predictor") == {*PREDICTORS, "random"}
    assert literals("job.schedule") == set(SCHEDULES)
    assert literals("circuits.span.length") | {"all-to-all"} == set(SPANS)
    named = settings()["circuits.policy"].doc
    assert {name for name in policies.REGISTRY if f"{name}," not in named.replace(";", ",")} <= {"sample-average"}
    assert all(f"{name}," in settings()["gpu.name"].doc for name in GPUS)


def test_units_are_said_or_those_of_the_name():
    case = Case().with_({"circuits.delay_s": "25 ms", "network.nic_gbps": "1.6 Tbps", "failures.restart_s": "2 h"})
    assert case.circuits.delay_s == pytest.approx(units.ms(25))
    assert (case.network.nic_gbps, case.failures.restart_s) == (1600.0, 7200.0)


def test_nothing_here_needs_numpy_or_jax():
    code = "import sys; from mfabric_jax.case import Case, load; load(preset='paper'); Case().with_({'gpu': 'x'});"
    code += "from mfabric_jax.commands import words, help, show; help.of_cases('show', show.Options, 'all');"
    code += "assert not {'numpy', 'jax'} & set(sys.modules), set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_leaves_that_vary_in_one_program_are_numbers():
    traced = [one for one in settings().values() if isinstance(one, Leaf) and one.traced]
    assert traced
    assert all({int, float} & set(parts_of(one.kind)) for one in traced)
