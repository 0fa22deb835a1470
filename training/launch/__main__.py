"""Verb: starts the workers of a run, and starts them again.

    python -m training.launch local --num_workers 2 --logs runs/novels/logs \
        -- python -m training.pretrain --strategy multi_worker ...
"""

import dataclasses
import os
import signal
import sys
import threading

import tyro

from training.engine import cli
from training.launch.cluster import (
    LocalConfig,
    MachinesConfig,
    TpuConfig,
    local_workers,
    machine_workers,
    tpu_worker,
)
from training.launch.supervisor import RestartConfig, Supervisor, Worker

_PROG = "training.launch"


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerConfig(RestartConfig):
    """This one worker, where something else sets TF_CONFIG: in a container."""

    stop_at_end_of_input: bool = False
    """Take the end of standard input for a SIGTERM."""


def parse(args: list[str]) -> tuple[RestartConfig, list[str]]:
    """Reads a launcher and, behind `--`, what it is to run."""
    end = args.index("--") if "--" in args else len(args)
    config = tyro.extras.subcommand_cli_from_dict(
        {
            "local": LocalConfig,
            "machines": MachinesConfig,
            "tpu": TpuConfig,
            "worker": WorkerConfig,
        },
        prog=f"python -m {_PROG}",
        description=(
            "Runs COMMAND as every worker of a run: `... -- COMMAND`. They "
            "start again, together, when one of them was lost."
        ),
        args=args[:end],
        use_underscores=True,
    )
    command = args[end + 1 :]
    if not command:
        sys.exit(
            cli.say_usage(
                _PROG,
                "{local,machines,tpu,worker} ... -- COMMAND",
                "COMMAND is missing behind `--`",
            )
        )
    return config, command


def main(args: list[str] | None = None) -> int:
    """Runs the verb and returns its exit status."""
    config, command = parse(sys.argv[1:] if args is None else args)
    try:
        if isinstance(config, LocalConfig):
            workers = local_workers(config, command)
        elif isinstance(config, MachinesConfig):
            workers = machine_workers(config, command)
        elif isinstance(config, TpuConfig):
            workers = [tpu_worker(config, command)]
        else:
            workers = [Worker("the worker", command)]
            if config.stop_at_end_of_input:
                threading.Thread(
                    target=_stop_at_end_of_input, daemon=True
                ).start()
        return Supervisor(workers, config).run()
    except (ValueError, OSError) as error:
        cli.say_error(_PROG, error)
        return 1


def _stop_at_end_of_input():
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
