r"""Starts the workers of a training run, and restarts them when one is lost.

    python -m training.launch local --num_workers 2 --logs runs/novels/logs \
        -- python -m training.pretrain --strategy multi_worker ...

When a worker is lost, all workers end and start again together.
"""

import contextlib
import dataclasses
import json
import pathlib
import socket
import sys

import tyro

from training.engine import cli
from training.engine.configs import check_at_least
from training.launch.supervisor import RestartConfig, Supervisor, Worker

_PROG = "training.launch"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalConfig(RestartConfig):
    """Several workers on this machine, over loopback, without its GPUs."""

    num_workers: int
    """Workers to start."""
    logs: pathlib.Path
    """Folder for the output of all workers but the first."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerConfig(RestartConfig):
    """One worker, whose TF_CONFIG you or a cluster have set."""


def local_workers(config: LocalConfig, command: list[str]) -> list[Worker]:
    """Returns workers that reach each other on free ports of this machine."""
    check_at_least(1, num_workers=config.num_workers)
    with contextlib.ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            for _ in range(config.num_workers)
        ]
        addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    workers = []
    for index in range(config.num_workers):
        tf_config = {
            "cluster": {"worker": addresses},
            "task": {"type": "worker", "index": index},
        }
        environment = {
            "TF_CONFIG": json.dumps(tf_config),
            # Each worker would reserve the memory of all GPUs.
            "CUDA_VISIBLE_DEVICES": "-1",
        }
        # The first worker reports on this terminal.
        log = config.logs / f"worker_{index}.log" if index else None
        workers.append(Worker(f"worker {index}", command, environment, log))
    return workers


def parse(args: list[str]) -> tuple[RestartConfig, list[str]]:
    """Returns the launcher and the command after `--`."""
    end = args.index("--") if "--" in args else len(args)
    config = tyro.extras.subcommand_cli_from_dict(
        {"local": LocalConfig, "worker": WorkerConfig},
        prog=f"python -m {_PROG}",
        description=cli.description(__doc__),
        args=args[:end],
        use_underscores=True,
    )
    command = args[end + 1 :]
    if not command:
        print(
            f"usage: python -m {_PROG} {{local,worker}} ... -- COMMAND",
            file=sys.stderr,
        )
        cli.say_error(_PROG, "COMMAND is missing after `--`")
        sys.exit(cli.USAGE)
    return config, command


def main(args: list[str] | None = None) -> int:
    """Runs the verb and returns its exit status."""
    config, command = parse(sys.argv[1:] if args is None else args)

    def launch(config):
        if isinstance(config, LocalConfig):
            workers = local_workers(config, command)
        else:
            workers = [Worker("the worker", command)]
        return Supervisor(workers, config).run()

    return cli.run(launch, config, _PROG)


if __name__ == "__main__":
    sys.exit(main())
