"""Configurations: which models and versions they name, and labels.

What is expected is from TensorFlow Serving's `server_core_test.cc` and
`file_system_storage_path_source_test.cc`, or from the sources they test.
"""

import pytest
from google.protobuf import text_format

from export import messages, session
from export.stand_in import core

STATES = messages.get_model_status_pb2.ModelVersionStatus.State


def config(*models):
    text = "".join(f"config {{ {model} }}" for model in models)
    return text_format.Parse(
        f"model_config_list {{ {text} }}",
        messages.model_server_config_pb2.ModelServerConfig(),
    )


def model(base_path, more="", name="m"):
    return (
        f'name: "{name}" base_path: "{base_path}" '
        f'model_platform: "tensorflow" {more}'
    )


def label(name, number):
    return f'version_labels {{ key: "{name}" value: {number} }}'


BOTH = "model_version_policy { all {} }"


@pytest.fixture
def models():
    made = core.Core(max_num_load_retries=0)
    yield made
    made.close()


def states(models, name="m"):
    return {n: STATES.Name(s) for n, (s, _) in models.states(name).items()}


def number_of(models, **fields):
    spec = messages.predict_pb2.PredictRequest().model_spec
    spec.name = "m"
    for name, value in fields.items():
        setattr(spec, name, value)
    with models.use(spec) as (number, _):
        return number


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("", [2]),
        ("latest {}", [2]),
        ("latest { num_versions: 5 }", [2, 1]),
        ("all {}", [2, 1]),
        ("specific { versions: 1 versions: 7 }", [1]),
    ],
)
def test_policies(half_plus, models, policy, expected):
    policy = f"model_version_policy {{ {policy} }}"
    models.configure(config(model(half_plus, policy)))
    models.refresh()
    assert states(models) == dict.fromkeys(expected, "AVAILABLE")


def test_names_of_versions(half_plus, models, tmp_path):
    too_large = (str(2**63), "9" * 20, "9" * 255)
    for name in ("copying", "-8", "8.5", ".9", "9a", "٣", *too_large):
        (tmp_path / name).mkdir()
    (tmp_path / "007").symlink_to(half_plus / "1")
    (tmp_path / str(2**63 - 1)).symlink_to(half_plus / "2")
    models.configure(config(model(tmp_path, BOTH)))
    models.refresh()
    assert states(models) == {7: "AVAILABLE", 2**63 - 1: "AVAILABLE"}


def test_versions_come_and_go(half_plus, models, tmp_path):
    base_path = tmp_path / "m"
    models.configure(config(model(base_path)))
    models.refresh()
    assert states(models) == {}
    base_path.mkdir()
    (base_path / "1").symlink_to(half_plus / "1")
    models.refresh()
    assert states(models) == {1: "AVAILABLE"}
    # A folder that is away is not an empty one.
    base_path.rename(tmp_path / "away")
    models.refresh()
    assert states(models) == {1: "AVAILABLE"}
    (tmp_path / "away").rename(base_path)
    (base_path / "1").unlink()
    models.refresh()
    assert states(models) == {1: "END"}


def test_a_model_left_out_is_unloaded(half_plus, models):
    two = [model(half_plus), model(half_plus, name="n")]
    models.configure(config(*two))
    models.refresh()
    models.configure(config(*two[1:]))
    models.refresh()
    assert (states(models), states(models, "n")) == (
        {2: "END"},
        {2: "AVAILABLE"},
    )
    models.configure(config(*two))
    models.refresh()
    assert states(models) == {2: "AVAILABLE"}


def test_labels_move_only_to_what_is_available(half_plus, models):
    labels = label("stable", 1), label("canary", 2)
    first = model(half_plus, "model_version_policy { latest {} }" + labels[1])
    with pytest.raises(
        session.StatusError,
        match="assign label to version 2 of model m, which is not currently",
    ):
        models.configure(config(first))
    models.configure(config(model(half_plus, BOTH)))
    models.refresh()
    models.configure(config(model(half_plus, BOTH + "".join(labels))))
    assert number_of(models, version_label="stable") == 1
    assert number_of(models, version_label="canary") == 2
    with pytest.raises(session.StatusError, match="version 7"):
        models.configure(config(model(half_plus, BOTH + label("stable", 7))))
    assert number_of(models, version_label="stable") == 1
    models.configure(config(model(half_plus, BOTH + label("stable", 2))))
    assert number_of(models, version_label="stable") == 2
    with pytest.raises(session.StatusError, match="Unrecognized.*canary"):
        number_of(models, version_label="canary")


def test_labels_for_what_is_not_available_yet(half_plus):
    models = core.Core(labels_for_unavailable=True)
    models.configure(config(model(half_plus, label("stable", 1))))
    with pytest.raises(session.StatusError, match=r"Specific\(m, 1\)"):
        number_of(models, version_label="stable")
    # A label in use does not move to where there is nothing.
    with pytest.raises(session.StatusError, match="version 2"):
        models.configure(config(model(half_plus, label("stable", 2))))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([model("/m"), model("/n")], "Illegal to list model m multiple times"),
        ([model("m")], "to have an absolute path"),
        (['name: "m" base_path: "/m"'], "unsupported platform"),
    ],
)
def test_configurations_refused(models, entries, message):
    with pytest.raises(session.StatusError, match=message):
        models.configure(config(*entries))


def test_start_fails_with_what_does_not_load(half_plus, models, tmp_path):
    (tmp_path / "1").mkdir()
    models.configure(config(model(half_plus), model(tmp_path, name="n")))
    with pytest.raises(
        session.StatusError,
        match=r"^UNKNOWN: 1 model.*name: n version: 1\} due to.*NOT_FOUND",
    ):
        models.start(seconds=0.1)
