"""The server as a process: versions that come and go, wrong arguments."""

import shutil

import numpy as np
import pytest

from export import cli, client, local_server, serve

TEXT = "open the file"


@pytest.fixture(scope="module")
def expected(embedder):
    """The Keras model's embedding of TEXT."""
    return np.array(embedder(embedder.preprocessor([TEXT])))


def test_swaps_versions_under_load(base_path, tmp_path, expected):
    folder = tmp_path / "models"
    shutil.copytree(base_path / "3", folder / "1")
    with local_server.running("tiny", folder) as running:
        (folder / "3").mkdir()  # a folder that is no model stays out of it
        with client.connect(running.rest_url, "tiny") as connection:
            connection.wait_until_ready(30)
            shutil.copytree(base_path / "3", folder / "copying")
            (folder / "copying").rename(folder / "5")
            while connection.version() == 1:
                answer = connection.embed([TEXT])
                np.testing.assert_allclose(answer, expected, atol=1e-5)
            assert connection.version() == 5
            np.testing.assert_allclose(
                connection.embed([TEXT]), expected, atol=1e-5
            )
        assert "version 5 is available" in running.log()
        assert "version 1 is unloaded" in running.log()
    assert running.process.returncode == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: None, "`model_base_path` is not a folder"),
        (lambda folder: folder.mkdir(), "has no version folder"),
        (
            lambda folder: (folder / "1").mkdir(parents=True),
            "the newest version does not load",
        ),
    ],
)
def test_command_line_errors(tmp_path, capsys, make, message):
    make(tmp_path / "models")
    words = ["--model_name", "m", "--model_base_path", str(tmp_path / "models")]
    assert cli.run(serve.main, serve.Arguments, words) == 1
    assert message in capsys.readouterr().err


def test_a_port_in_use_is_one_line(server, base_path, capsys):
    port = server.grpc_url.rpartition(":")[2]
    words = [
        *("--model_name", "m", "--model_base_path", str(base_path)),
        *(
            "--port",
            port,
            "--rest_api_port",
            str(local_server.free_ports(1)[0]),
        ),
    ]
    assert cli.run(serve.main, serve.Arguments, words) == 1
    assert f"gRPC cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err
