"""The server as a process: swaps under load, broken folders, bad arguments."""

import concurrent.futures
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import requests

from export import cli, client, local_server, serve, stand_in

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


def ask(server, path="m"):
    """Returns the answer of REST to the number 1."""
    return requests.post(
        f"{server.rest_url}/v1/models/{path}:predict",
        json={"inputs": 1.0},
        timeout=20,
    ).json()["outputs"]


def test_swaps_versions_under_load(half_plus, tmp_path):
    def load(url, seed):
        random = np.random.default_rng(seed)
        seen, count = set(), 0
        with client.connect(url, "m") as connection:
            while not stopping.is_set():
                x = random.normal(size=random.integers(1, 99)).astype("float32")
                y = connection.predict({"x": x})["y"]
                (offset,) = {round(float(d), 3) for d in y - x / 2}
                seen.add(offset)
                count += 1
        return seen, count

    # It waits for the first version; a busy machine starts it slowly.
    timer = threading.Timer(3, publish, [half_plus, 1, tmp_path, 1])
    timer.start()
    stopping = threading.Event()
    words = ("--model_name", "m", "--model_base_path", str(tmp_path))
    with (
        local_server.started("m", *words) as server,
        concurrent.futures.ThreadPoolExecutor(6) as pool,
    ):
        assert "no versions found under base path" in server.log()
        clients = [
            pool.submit(load, url, seed)
            for seed, url in enumerate([server.rest_url, server.grpc_url] * 3)
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
        for future in clients:
            seen, count = future.result()
            assert seen == {2.0, 3.0}
            assert count > 9
        log = server.log()
    for number in (2, 3):
        assert f"m: version {number} is available" in log
    assert "m: version 1 is unloaded" in log
    assert server.process.returncode == 0


def test_a_configuration_that_changes(half_plus, tmp_path):
    def write(*models):
        new = tmp_path / "new"
        new.write_text(
            f"""model_config_list {{ config {{
                name: "m" base_path: "{half_plus}" model_platform: "tensorflow"
                model_version_policy {{ all {{}} }} {" ".join(models)}
            }} }}"""
        )
        os.replace(new, file)

    def label(name, number):
        return f'version_labels {{ key: "{name}" value: {number} }}'

    file = tmp_path / "models.config"
    write(label("stable", 1))
    with local_server.started(
        "m",
        *("--model_config_file", str(file)),
        *("--model_config_file_poll_wait_seconds", "1"),
        "--allow_version_labels_for_unavailable_models",
    ) as server:
        wait_for(server, 1, "AVAILABLE")
        assert ask(server, "m/labels/stable") == 2.5
        file.write_text("no configuration")
        while "the configuration stays as it was" not in server.log():
            time.sleep(0.05)
        assert ask(server, "m/labels/stable") == 2.5
        write(label("stable", 2))
        deadline = time.monotonic() + 30
        while ask(server, "m/labels/stable") != 3.5:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def run(*words):
    return cli.run(serve.main, serve.Arguments, words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Pass either `model_base_path`"),
        (["--model_base_path", "{}/none"], "`model_base_path` is not a folder"),
        (
            ["--model_base_path", "{}", "--file_system_poll_wait_seconds", "0"],
            "`file_system_poll_wait_seconds` must be at least 1, received 0.",
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


def test_a_local_server_needs_a_version(tmp_path):
    with pytest.raises(ValueError, match="has no version folder"):
        with local_server.running("m", tmp_path):
            pass


def serve_in_a_process(*words):
    command = [sys.executable, "-m", "export.serve", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_a_port_in_use_is_one_line(half_plus):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = serve_in_a_process(
            *("--model_base_path", half_plus, "--port", port)
        )
    assert ended.returncode == 1
    message = f"gRPC cannot listen on 127.0.0.1:{port}"
    assert message in ended.stderr.splitlines()[-1]


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
    flags = dict(re.findall(r"^--(\w+)=(.*)$", printed, re.MULTILINE))
    known = pathlib.Path(__file__).with_name("serving_flags.txt").read_text()
    assert flags.keys() <= set(known.split())
    assert (flags["model_base_path"], flags["port"]) == (str(tmp_path), "7")
    assert flags["allow_version_labels_for_unavailable_models"] == "false"


def test_the_model_server_has_no_address(binary, tmp_path, capsys):
    assert run("--model_base_path", str(tmp_path)) == 1
    error = capsys.readouterr().err
    assert f"{binary} listens on every interface" in error
    assert "Pass `--host 0.0.0.0`" in error


def test_a_local_server_that_does_not_start(binary, half_plus):
    # The last word that the model server here prints.
    with pytest.raises(client.ServerError, match="load_retry_interval_micros"):
        with local_server.running("m", half_plus):
            pass
