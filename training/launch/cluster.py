"""The workers of a run: on one machine, on each of several, on a TPU."""

import contextlib
import dataclasses
import json
import pathlib
import shlex
import socket
import subprocess

from training.launch.supervisor import RestartConfig, Worker

# Where workers listen unless told otherwise; TFJob's default, too.
_PORT = 2222

# Show that a clone is there, with what it needs.
_SHOW = "python -c 'import training.engine.cli'"
_SHOW_LIBTPU = (
    "python -c 'import libtpu, training.engine.cli; "
    "print(libtpu.get_library_path())'"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalConfig(RestartConfig):
    """Several workers on this machine, over loopback, without its GPUs."""

    num_workers: int
    """Workers to start."""
    logs: pathlib.Path
    """Folder for the output of all workers but the first."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MachinesConfig(RestartConfig):
    """One worker on each of several machines, over ssh."""

    hosts: tuple[str, ...]
    """[USER@]HOST[:PORT] of each; the first writes what the run keeps. The
    others reach it as HOST, on PORT (2222)."""
    logs: pathlib.Path
    """Folder, here, for the output of all workers but the first."""
    clone: pathlib.Path = dataclasses.field(default_factory=pathlib.Path.cwd)
    """Folder of the clone on every machine; paths are relative to it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TpuConfig(RestartConfig):
    """A Cloud TPU: one TPU VM or, through its first one, a pod slice."""

    name: str
    """The TPU."""
    zone: str
    """Its zone."""
    clone: pathlib.Path
    """Folder of the clone on the TPU VM; paths are relative to it."""


def local_workers(config: LocalConfig, command: list[str]) -> list[Worker]:
    """Returns workers that meet on free ports of this machine.

    Raises:
        ValueError: There are none.
    """
    if config.num_workers < 1:
        raise ValueError(
            f"`num_workers` must be at least 1. Received: {config.num_workers}"
        )
    with contextlib.ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            for _ in range(config.num_workers)
        ]
        addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    return [
        Worker(
            name=f"worker {index}",
            command=command,
            environment={
                "TF_CONFIG": _tf_config(addresses, index),
                # Each would take the memory of all.
                "CUDA_VISIBLE_DEVICES": "-1",
            },
            log=_log(config.logs, index),
        )
        for index in range(config.num_workers)
    ]


def machine_workers(config: MachinesConfig, command: list[str]) -> list[Worker]:
    """Returns workers on other machines, once each has shown its clone.

    Raises:
        ValueError: A machine is named twice, cannot be reached or has no
            clone.
    """
    targets, addresses = [], []
    for host in config.hosts:
        target, _, port = host.partition(":")
        targets.append(target)
        addresses.append(f"{target.rpartition('@')[2]}:{port or _PORT}")
    if not addresses or len(set(addresses)) < len(addresses):
        raise ValueError(
            "`hosts` must be one or more, each once. Received: "
            f"{' '.join(config.hosts)}"
        )
    for target in targets:
        _output(
            _ssh(target, _in_clone(config, _SHOW)),
            "`hosts` must be reached by ssh without a password and have the "
            f"clone at {config.clone}, set up by `make setup`. Received: "
            f"{target}",
        )
    return [
        Worker(
            name=f"worker {index} on {target}",
            command=_ssh(
                target,
                _supervised(
                    config,
                    command,
                    {"TF_CONFIG": _tf_config(addresses, index)},
                    lock=addresses[index].rpartition(":")[2],
                ),
            ),
            log=_log(config.logs, index),
            remote=True,
        )
        for index, target in enumerate(targets)
    ]


def tpu_worker(config: TpuConfig, command: list[str]) -> Worker:
    """Returns the one process that a TPU needs, once the TPU has shown itself.

    One TPU VM computes in that process. The TPU VMs of a pod slice run
    TensorFlow servers, which the process on the first one talks to; it must
    not take the chips from the server there.

    Raises:
        ValueError: The TPU is not ready, or there is no clone.
    """
    state, _, num_machines = _output(
        _gcloud(
            "describe", config, "--format=value(state,networkEndpoints.len())"
        ),
        f"`name` and `zone` must be of a TPU. Received: {config.name} in "
        f"{config.zone}",
    ).partition("\t")
    if state != "READY":
        raise ValueError(
            f"`name` must be a TPU that is READY. Received: {config.name}, "
            f"which is {state}"
        )
    single = num_machines == "1"
    shown = _output(
        _gcloud_ssh(
            config, _in_clone(config, _SHOW_LIBTPU if single else _SHOW)
        ),
        f"`clone` must be set up for a TPU. Received: {config.clone} on "
        f"{config.name}",
    )
    if single:
        environment = {
            "TPU_NAME": "local",
            "NEXT_PLUGGABLE_DEVICE_USE_C_API": "true",
            "TF_PLUGGABLE_DEVICE_LIBRARY_PATH": shown,
        }
    else:
        environment = {"TPU_NAME": config.name, "TPU_LOAD_LIBRARY": "0"}
    return Worker(
        name=f"the worker on {config.name}",
        command=_gcloud_ssh(
            config, _supervised(config, command, environment, lock="tpu")
        ),
        remote=True,
    )


def _tf_config(addresses, index):
    return json.dumps(
        {
            "cluster": {"worker": addresses},
            "task": {"type": "worker", "index": index},
        }
    )


def _log(folder, index):
    # The first worker is the one that reports.
    return folder / f"worker_{index}.log" if index else None


def _output(command, wanted):
    """What a command prints.

    Raises:
        ValueError: It fails; says what was wanted, and why not.
    """
    ended = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if ended.returncode:
        reason = ended.stderr.strip().rpartition("\n")[2]
        raise ValueError(f"{wanted}, which says: {reason}")
    return ended.stdout.strip()


def _ssh(target, script):
    return [
        *("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15"),
        # A machine that is gone is noticed after a minute.
        *("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4"),
        *(target, script),
    ]


def _gcloud(verb, config, *args):
    return [
        *("gcloud", "compute", "tpus", "tpu-vm", verb, config.name),
        *(f"--zone={config.zone}", *args),
    ]


def _gcloud_ssh(config, script):
    return _gcloud("ssh", config, "--worker=0", f"--command={script}")


def _in_clone(config, script):
    folder = shlex.quote(str(config.clone))
    return f'cd {folder} && PATH="$PWD/.venv/bin:$PATH" && {script}'


def _supervised(config, command, environment, lock):
    """Shell that runs a command elsewhere for as long as its input is open.

    What a lost connection left behind, in its grace period, holds the lock.
    """
    words = [
        *("env", *(f"{name}={value}" for name, value in environment.items())),
        *("python", "-m", "training.launch", "worker"),
        *("--stop_at_end_of_input", "--max_restarts", "0"),
        *("--grace_period", str(config.grace_period), "--", *command),
    ]
    path = f"${{TMPDIR:-/tmp}}/training.launch.$USER.{lock}"
    return _in_clone(config, f'exec flock "{path}" {shlex.join(words)}')
