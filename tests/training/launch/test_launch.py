"""The launchers, with programs that are killed, lost and stopped on plan."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.training import workers
from training.launch.__main__ import main

# Each worker follows its part of the plan: an exit status or a word for each
# time it is started, the last one from then on. It leaves a line every time in
# a file of its own.
WORKER = """
import json, os, pathlib, signal, sys, time

folder, *plan = sys.argv[1:]
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
path = pathlib.Path(folder, f"worker_{index}")
starts = path.read_text().count("start") if path.exists() else 0

def note(text):
    with open(path, "a") as lines:
        lines.write(text + "\\n")

def save(signum, frame):
    note(signal.Signals(signum).name)
    time.sleep(0.3)  # a second signal would be noted, too
    sys.exit(128 + signum)

signal.signal(signal.SIGINT, save)
signal.signal(signal.SIGTERM, save)
note("start " + os.environ["TF_CONFIG"])
print("output of worker", index, os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
actions = plan[index].split(",")
action = actions[min(starts, len(actions) - 1)]
if action == "die":
    os.kill(os.getpid(), signal.SIGKILL)
if action == "run":
    time.sleep(60)
if action == "hang":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(60)
sys.exit(int(action))
"""


@pytest.fixture
def launcher(tmp_path, capfd):
    # A process passes on what it ignores, as these are in the background.
    signals = {
        signum: signal.signal(signum, signal.default_int_handler)
        for signum in (signal.SIGINT, signal.SIGHUP)
    }
    launcher = Launcher(tmp_path, capfd)
    yield launcher
    for process in launcher.processes:
        process.terminate()
        process.communicate()
    for signum, handler in signals.items():
        signal.signal(signum, handler)


class Launcher:
    """Runs the verb here, or starts it as a process, for signals."""

    def __init__(self, folder, capfd):
        self.folder = folder
        self.capfd = capfd
        self.processes = []

    def args(self, launcher, *plan, command=None, **flags):
        flags = {"restart_delay": 0, "grace_period": 20, **flags}
        args = [launcher]
        for name, value in flags.items():
            args += [f"--{name}", str(value)]
        if launcher == "local":
            args += ["--logs", str(self.folder / "logs")]
        if command is None:
            # -I -S: it starts sooner.
            command = [sys.executable, "-ISc", WORKER, str(self.folder), *plan]
        return [*args, "--", *command]

    def start(self, *args, **flags):
        process = workers.start(
            *("-m", "training.launch", *self.args(*args, **flags)),
            stderr=subprocess.PIPE,
            process_group=0,
        )
        self.processes.append(process)
        return process

    def run(self, *args, **flags):
        """Returns the exit status and what was printed."""
        try:
            status = main(self.args(*args, **flags))
        except SystemExit as stopped:
            status = stopped.code
        return status, *self.capfd.readouterr()

    def notes(self, index):
        path = self.folder / f"worker_{index}"
        return path.read_text().splitlines() if path.exists() else []

    def starts(self, index):
        return sum(line.startswith("start") for line in self.notes(index))

    def wait_for(self, note, *indices):
        deadline = time.monotonic() + 60
        while not all(
            any(line.startswith(note) for line in self.notes(index))
            for index in indices
        ):
            assert time.monotonic() < deadline, note
            time.sleep(0.02)


def test_workers_are_told_of_each_other(launcher):
    status, output, errors = launcher.run("local", "0", "0", "0", num_workers=3)
    assert (status, errors) == (0, "")
    notes = [launcher.notes(index)[0] for index in range(3)]
    configs = [json.loads(note.removeprefix("start ")) for note in notes]
    assert [config["task"] for config in configs] == [
        {"type": "worker", "index": index} for index in range(3)
    ]
    (workers,) = {tuple(config["cluster"]["worker"]) for config in configs}
    assert len(set(workers)) == 3
    assert all(address.startswith("127.0.0.1:") for address in workers)
    # The first one reports here, the others in their files.
    assert output == "output of worker 0 -1\n"
    for index in (1, 2):
        log = launcher.folder / "logs" / f"worker_{index}.log"
        assert log.read_text() == f"output of worker {index} -1\n"


@pytest.mark.parametrize(
    "plan, status, starts",
    [
        # A worker is lost, and the other one notices.
        (("75,0", "die,0"), 0, 2),
        # One was preempted, and both saved.
        (("143,0", "143,0"), 0, 2),
        # What no restart mends.
        (("75", "1"), 1, 1),
        (("75,1", "75,1"), 1, 2),
        # No more restarts are allowed.
        (("die,die,die", "75,75,75"), 75, 3),
    ],
)
def test_exit_statuses(launcher, plan, status, starts):
    ended, *_ = launcher.run("local", *plan, num_workers=2, max_restarts=2)
    assert ended == status
    assert [launcher.starts(index) for index in (0, 1)] == [starts, starts]


def test_worker_that_hangs_without_the_other_is_killed(launcher):
    status, _, errors = launcher.run(
        "local", "hang,0", "die,0", num_workers=2, grace_period=1
    )
    assert status == 0
    assert errors.splitlines() == [
        "training.launch: worker 0 ended with status 137",
        "training.launch: worker 1 ended with status 137, see "
        f"{launcher.folder}/logs/worker_1.log",
        "training.launch: restart 1 of 10 in 0 s",
    ]


@pytest.mark.parametrize(
    "sent, noted", [(signal.SIGINT, "SIGINT"), (signal.SIGHUP, "SIGTERM")]
)
def test_signals_reach_every_worker_once(launcher, sent, noted):
    process = launcher.start("local", "run", "run", num_workers=2)
    launcher.wait_for("start", 0, 1)
    os.killpg(process.pid, sent)  # as a terminal does
    assert process.wait(timeout=30) == 128 + sent
    for index in (0, 1):
        assert launcher.notes(index)[1:] == [noted]


def test_signal_before_a_restart(launcher):
    process = launcher.start("local", "75", num_workers=1, restart_delay=60)
    while "restart 1" not in process.stderr.readline():
        assert process.poll() is None
    process.terminate()
    assert process.wait(timeout=30) == 143
    assert launcher.starts(0) == 1


def test_worker_of_a_pod(launcher, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", '{"task": {"index": 0}}')
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert launcher.run("worker", "75,die,143,0")[0] == 0
    assert launcher.starts(0) == 4


@pytest.mark.parametrize(
    "command, status, message",
    [
        (["absent_program"], 1, "absent_program"),
        ([], 2, "COMMAND is missing"),
    ],
)
def test_command_that_is_none(launcher, command, status, message):
    found, _, errors = launcher.run("local", command=command, num_workers=2)
    assert found == status
    assert message in errors and "Traceback" not in errors
