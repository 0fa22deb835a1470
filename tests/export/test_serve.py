"""The server as a process: swaps under load, broken folders, bad arguments."""

import concurrent.futures
import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import grpc
import numpy as np
import pytest
import requests

from export import cli, client, local_server, messages, serve, stand_in

ROOT = pathlib.Path(__file__).parents[2]


def publish(half_plus, source, folder, number):
    """Copies a version and renames it, as every export does."""
    shutil.copytree(half_plus / str(source), folder / "copying")
    (folder / "copying").rename(folder / str(number))


def states(server):
    """Returns `{version: (state, message)}`."""
    answer = requests.get(f"{server.rest_url}/v1/models/m", timeout=20).json()
    return {
        int(found["version"]): (
            found["state"],
            found["status"]["error_message"],
        )
        for found in answer["model_version_status"]
    }


def wait_for(server, number, state):
    deadline = time.monotonic() + 30
    while (found := states(server)).get(number, ("", ""))[0] != state:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found


def ask(server, x=1.0, path="m"):
    """Returns the answer of REST to one number."""
    return requests.post(
        f"{server.rest_url}/v1/models/{path}:predict",
        json={"inputs": x},
        timeout=20,
    ).json()["outputs"]


def rest_caller(server):
    session = requests.Session()

    def call(x):
        url = f"{server.rest_url}/v1/models/m:predict"
        response = session.post(url, json={"inputs": x.tolist()}, timeout=20)
        assert response.status_code == 200, response.text
        return np.float32(response.json()["outputs"]), None

    return call


def grpc_caller(server):
    channel = grpc.insecure_channel(server.grpc_url.removeprefix("grpc://"))
    stub = messages.prediction_service_pb2_grpc.PredictionServiceStub(channel)

    def call(x):
        request = messages.predict_pb2.PredictRequest()
        request.model_spec.name = "m"
        request.inputs["x"].CopyFrom(messages.to_tensor_proto(x))
        response = stub.Predict(request, timeout=20)
        y = messages.from_tensor_proto(response.outputs["y"])
        return y, response.model_spec.version.value

    return call


def test_swaps_versions_under_load(half_plus, tmp_path):
    offsets = {1: 2.0, 2: 3.0, 3: 2.0}
    publish(half_plus, 1, tmp_path, 1)
    stopping = threading.Event()

    def load(make, seed):
        call, random = make(server), np.random.default_rng(seed)
        seen, count = set(), 0
        while not stopping.is_set():
            x = random.normal(size=random.integers(1, 99)).astype("float32")
            y, version = call(x)
            (offset,) = {round(float(d)) for d in y - x / 2}
            assert version is None or offset == offsets[version]
            seen.add(version or offset)
            count += 1
        return seen, count

    with (
        local_server.running("m", tmp_path) as server,
        concurrent.futures.ThreadPoolExecutor(6) as pool,
    ):
        clients = [
            pool.submit(load, make, seed)
            for seed, make in enumerate([rest_caller, grpc_caller] * 3)
        ]
        try:
            for source, number in ((2, 2), (1, 3)):
                publish(half_plus, source, tmp_path, number)
                wait_for(server, number, "AVAILABLE")
            # Back to the one before, by taking the newest away.
            shutil.rmtree(tmp_path / "3")
            found = wait_for(server, 3, "END")
            assert [state for state, _ in found.values()] == [
                *("END", "AVAILABLE", "END")
            ]
        finally:
            stopping.set()
        for index, future in enumerate(clients):
            seen, count = future.result()
            assert seen == ({1, 2, 3} if index % 2 else {2, 3})
            assert count > 9
        log = server.log()
    for number in (2, 3):
        assert f"m: version {number} is available" in log
    assert "m: version 1 is unloaded" in log
    assert server.process.returncode == 0


def test_broken_folders_beside_a_good_one(half_plus, tmp_path):
    publish(half_plus, 1, tmp_path, 1)
    flags = ("--max_num_load_retries=2", "--load_retry_interval_micros=100000")
    with local_server.running("m", tmp_path, *flags) as server:
        shutil.copytree(half_plus / "2", tmp_path / "copying")
        data = pathlib.Path("variables", "variables.data-00000-of-00001")
        (tmp_path / "copying" / data).unlink()
        (tmp_path / "copying").rename(tmp_path / "2")
        found = wait_for(server, 2, "LOADING")
        assert found == {2: ("LOADING", ""), 1: ("AVAILABLE", "")}
        assert ask(server) == 2.5
        shutil.copy(half_plus / "2" / data, tmp_path / "2" / data)
        wait_for(server, 2, "AVAILABLE")
        assert ask(server) == 3.5
        (tmp_path / "3").mkdir()
        (tmp_path / "3" / "saved_model.pb").write_bytes(b"no graph")
        found = wait_for(server, 3, "END")
        assert found[3][1]  # what the loader says
        assert found[2] == ("AVAILABLE", "")
        assert ask(server) == 3.5


def test_waits_for_the_first_version(half_plus, tmp_path):
    timer = threading.Timer(2, publish, [half_plus, 1, tmp_path, 1])
    timer.start()
    words = ("--model_name", "m", "--model_base_path", str(tmp_path))
    with local_server.started("m", *words) as server:
        assert not timer.is_alive()
        assert ask(server) == 2.5
        assert "no versions found under base path" in server.log()


def test_a_configuration_that_changes(half_plus, tmp_path):
    def write(versions, labels):
        chosen = " ".join(f"versions: {number}" for number in versions)
        named = " ".join(
            f'version_labels {{ key: "{label}" value: {number} }}'
            for label, number in labels.items()
        )
        new = tmp_path / "new"
        new.write_text(
            f"""model_config_list {{ config {{
                name: "m" base_path: "{half_plus}" model_platform: "tensorflow"
                model_version_policy {{ specific {{ {chosen} }} }} {named}
            }} }}"""
        )
        os.replace(new, file)

    def wait_for_answer(path, expected):
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with contextlib.suppress(KeyError):
                if ask(server, path=path) == expected:
                    return
            time.sleep(0.1)
        raise AssertionError(path)

    file = tmp_path / "models.config"
    write([1], {"stable": 1})
    with local_server.started(
        "m",
        *("--model_config_file", str(file)),
        *("--model_config_file_poll_wait_seconds", "1"),
        "--allow_version_labels_for_unavailable_models",
    ) as server:
        assert ask(server, path="m/labels/stable") == 2.5
        write([1, 2], {"stable": 1, "canary": 2})
        wait_for_answer("m/labels/canary", 3.5)
        assert ask(server, path="m/labels/stable") == 2.5
        file.write_text("no configuration")
        time.sleep(1.2)
        assert ask(server, path="m/labels/canary") == 3.5
        write([2], {"stable": 2})
        wait_for_answer("m/labels/stable", 3.5)
        wait_for(server, 1, "END")
        assert "the configuration stays as it was" in server.log()


def run(*words):
    return cli.run(serve.main, serve.Arguments, words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Pass either `model_base_path`"),
        (
            ["--model_base_path", "{}", "--model_config_file", "x"],
            "Pass either",
        ),
        (["--model_base_path", "{}/none"], "`model_base_path` is not a folder"),
        (
            ["--model_base_path", "{}", "--file_system_poll_wait_seconds", "0"],
            "`file_system_poll_wait_seconds` must be at least 1, received 0.",
        ),
        (
            ["--model_base_path", "{}", "--max_request_texts", "0"],
            "`max_request_texts` must be at least 1, received 0.",
        ),
        (
            ["--model_base_path", "{}", "--max_num_load_retries", "0"],
            "UNKNOWN: 1 model(s) did not become available: {{{name: default "
            "version: 1} due to error: NOT_FOUND",
        ),
        (["--model_config_file", "{}/none"], "none"),
        (["--model_config_file", "{}/text"], "is no ModelServerConfig"),
        (
            ["--model_config_file", "{}/labels"],
            "FAILED_PRECONDITION: Request to assign label to version 1",
        ),
    ],
)
def test_command_line_errors(tmp_path, capsys, words, message):
    (tmp_path / "1").mkdir()
    (tmp_path / "text").write_text("config { }")
    (tmp_path / "labels").write_text(
        f"""model_config_list {{ config {{
            name: "m" base_path: "{tmp_path}" model_platform: "tensorflow"
            version_labels {{ key: "stable" value: 1 }}
        }} }}"""
    )
    assert run(*(word.format(tmp_path) for word in words)) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_local_server_needs_a_version(tmp_path):
    with pytest.raises(ValueError, match="has no version folder"):
        with local_server.running("m", tmp_path):
            pass


@pytest.mark.parametrize(
    ("flag", "other", "message"),
    [
        ("--port", "--rest_api_port", "gRPC cannot listen on 127.0.0.1:{}"),
        ("--rest_api_port", "--port", "Address already in use"),
    ],
)
def test_a_port_in_use_is_one_line(half_plus, flag, other, message):
    (free,) = local_server.free_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = serve_in_a_process(
            *("--model_base_path", half_plus, flag, port, other, free)
        )
    assert ended.returncode == 1
    assert message.format(port) in ended.stderr.splitlines()[-1]


def serve_in_a_process(*words):
    command = [sys.executable, "-m", "export.serve", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.fixture
def binary(tmp_path, monkeypatch):
    """A model server on PATH that prints its arguments."""
    path = tmp_path / stand_in.BINARY
    path.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return path


def test_gives_way_to_the_model_server(binary, tmp_path):
    printed = serve_in_a_process(
        *("--model_name", "m", "--model_base_path", tmp_path, "--port", "7"),
        *("--host", "0.0.0.0", "--max_request_texts", "9"),
    ).stdout
    assert f"{binary} is installed and serves" in printed
    for flag in (
        "--model_name=m",
        f"--model_base_path={tmp_path}",
        "--port=7",
        "--allow_version_labels_for_unavailable_models=false",
        "--load_retry_interval_micros=60000000",
    ):
        assert f"\n{flag}\n" in printed
    assert "None" not in printed
    assert "host" not in printed
    assert "max_request" not in printed


@pytest.mark.parametrize("words", [(), ("--host", "127.0.0.1")])
def test_the_model_server_has_no_address(
    binary, tmp_path, monkeypatch, capsys, words
):
    monkeypatch.setattr(os, "execv", lambda *_: pytest.fail("it is started"))
    assert run("--model_base_path", str(tmp_path), *words) == 1
    error = capsys.readouterr().err
    assert f"{binary} listens on every interface" in error
    assert "Pass `--host 0.0.0.0`" in error


def test_a_local_server_where_the_model_server_is(binary, half_plus):
    # The last word that the model server here prints.
    with pytest.raises(client.ServerError, match="load_retry_interval_micros"):
        with local_server.running("m", half_plus):
            pass
