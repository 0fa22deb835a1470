"""Versions of one model: which one is asked, and when one is let go."""

import shutil

import numpy as np
import pytest

from export import messages, session
from export.stand_in import manager

STATES = messages.get_model_status_pb2.ModelVersionStatus


@pytest.fixture
def folder(base_path, tmp_path):
    shutil.copytree(base_path / "3", tmp_path / "2")
    return tmp_path


@pytest.fixture
def models(folder):
    made = manager.Manager("tiny", folder)
    assert made.refresh() == ["version 2 is available"]
    yield made
    made.close()


def spec(version=None):
    made = messages.predict_pb2.PredictRequest().model_spec
    made.name = "tiny"
    if version is not None:
        made.version.value = version
    return made


def states(models):
    request = messages.get_model_status_pb2.GetModelStatusRequest(
        model_spec=spec()
    )
    return {
        status.version: STATES.State.Name(status.state)
        for status in models.status(request).model_version_status
    }


def test_version_in_use_is_unloaded_after_its_last_request(folder, models):
    texts = {"text": np.array([b"the dog"], object)}
    with models.use(spec()) as (number, model):
        assert number == 2
        (folder / "2").rename(folder / "5")
        lines = ["version 5 is available", "version 2 is unloaded"]
        assert models.refresh() == lines
        assert states(models) == {5: "AVAILABLE", 2: "UNLOADING"}
        assert model.run(texts)["embedding"].shape == (1, 13)
        with models.use(spec()) as (newer, _):
            assert newer == 5
    assert states(models) == {5: "AVAILABLE", 2: "END"}
    with pytest.raises(session.StatusError, match=r"Specific\(tiny, 2\)"):
        with models.use(spec(2)):
            pass


def test_broken_version_leaves_the_old_one(folder, models):
    (folder / "7").mkdir()
    (line,) = models.refresh()
    assert line.startswith("version 7 does not load: NOT_FOUND")
    assert states(models) == {7: "END", 2: "AVAILABLE"}
    assert models.refresh() == []
    with models.use(spec()) as (number, _):
        assert number == 2


def test_failing_warmup_fails_the_load(folder, models):
    shutil.copytree(folder / "2", folder / "7")
    path = folder / "7/assets.extra/tf_serving_warmup_requests"
    path.write_bytes(path.read_bytes()[:-1])
    (line,) = models.refresh()
    assert "ends within a record" in line
    assert states(models) == {7: "END", 2: "AVAILABLE"}


def test_other_names_are_no_versions(folder, models):
    for name in ("copying", "-8", "8.5", ".9"):
        (folder / name).mkdir()
    (folder / "11").write_text("a file")
    assert models.refresh() == []
