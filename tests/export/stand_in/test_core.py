"""Configurations and versions: which are named, loaded, tried again, let go.

What is expected is from TensorFlow Serving's `server_core_test.cc`,
`file_system_storage_path_source_test.cc`, `aspired_versions_manager_test.cc`
and `availability_preserving_policy_test.cc`, or from the sources they test.
"""

import shutil
import time

import numpy as np
import pytest
from google.protobuf import text_format

from export import messages, session
from export.stand_in import core

STATES = messages.get_model_status_pb2.ModelVersionStatus.State
X = {"x": np.float32([1])}
BOTH = "model_version_policy { all {} }"


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
    for name in ("copying", "-8", "8.5", "9a", "٣", *too_large):
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
    for listed, expected in ((two, "AVAILABLE"), (two[1:], "END")):
        models.configure(config(*listed))
        models.refresh()
        assert states(models) == {2: expected}
        assert states(models, "n") == {2: "AVAILABLE"}


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


@pytest.fixture
def folders(half_plus, tmp_path):
    """Paths by version; 1 and 2 hold models, 3 is empty."""
    shutil.copytree(half_plus, tmp_path, dirs_exist_ok=True)
    (tmp_path / "3").mkdir()
    return {number: tmp_path / str(number) for number in (1, 2, 3)}


@pytest.fixture
def served(folders):
    """Serves a model; a call gives the states of its versions."""
    made = core.Model("m", max_num_load_retries=1, load_retry_seconds=0.1)

    def serve(*numbers):
        made.want({number: folders[number] for number in numbers})
        made.advance()
        return {n: STATES.Name(s) for n, (s, _) in made.states().items()}

    serve.use = made.use
    yield serve
    made.close()


def asked(served, number=None):
    with served.use(number) as (found, loaded):
        return found, float(loaded.run(X)["y"][0])


def test_a_version_in_use_is_unloaded_after_its_last_request(served):
    served(1)
    with served.use() as (number, loaded):
        assert number == 1
        with served.use(1):
            assert served(2) == {2: "AVAILABLE", 1: "UNLOADING"}
        assert asked(served) == (2, 3.5)
        assert loaded.run(X)["y"] == 2.5
        with pytest.raises(session.StatusError, match=r"Specific\(m, 1\)"):
            asked(served, 1)
    assert served(2) == {2: "AVAILABLE", 1: "END"}


def test_versions_side_by_side_and_back_to_an_older_one(served):
    assert served(1, 2) == {2: "AVAILABLE", 1: "AVAILABLE"}
    assert asked(served) == (2, 3.5)
    assert asked(served, 1) == (1, 2.5)
    assert served(1) == {2: "END", 1: "AVAILABLE"}
    assert asked(served) == (1, 2.5)
    assert served(2) == {2: "AVAILABLE", 1: "END"}
    assert asked(served) == (2, 3.5)
    assert served() == {2: "END", 1: "END"}
    with pytest.raises(session.StatusError, match=r"Latest\(m\)"):
        asked(served)


def test_an_old_version_answers_while_a_broken_one_is_tried(served, folders):
    served(1)
    assert served(3) == {3: "LOADING", 1: "AVAILABLE"}
    assert served(3) == {3: "LOADING", 1: "AVAILABLE"}
    time.sleep(0.1)
    assert served(3) == {3: "END", 1: "AVAILABLE"}
    assert asked(served) == (1, 2.5)
    # Repaired too late, it is loaded only after a break.
    shutil.copytree(folders[2], folders[3], dirs_exist_ok=True)
    assert served(3) == {3: "END", 1: "AVAILABLE"}
    assert served(1) == {3: "END", 1: "AVAILABLE"}
    assert served(3) == {3: "AVAILABLE", 1: "END"}


def test_a_failing_warmup_fails_the_load(served, folders):
    path = folders[2] / "assets.extra/tf_serving_warmup_requests"
    path.parent.mkdir()
    path.write_bytes(b"half a record")
    served(1)
    assert served(2) == {2: "LOADING", 1: "AVAILABLE"}
    path.unlink()  # repaired in time
    time.sleep(0.1)
    assert served(2) == {2: "AVAILABLE", 1: "END"}
