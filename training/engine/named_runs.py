"""Commands that train one of several named runs."""

import pkgutil
import re
import sys
from collections.abc import Callable
from types import ModuleType

import tyro

from training.engine import cli
from training.engine.configs import ExperimentConfig


def training_command(
    prog: str, doc: str, *modules: ModuleType
) -> tuple[Callable, Callable, Callable[..., int]]:
    """Returns `parse`, `train` and `main` for the `NAMED_RUNS` of modules.

    `parse` returns the run that `--config` names, changed by the other flags;
    `train` trains or continues it, see `training.engine.loop.run_task`.
    """
    named_runs: dict[str, Callable[[], ExperimentConfig]] = {}
    for module in modules:
        named_runs |= module.NAMED_RUNS

    def parse(args: list[str] | None = None) -> ExperimentConfig:
        name = cli.read_choice("--config", named_runs, args, prog)
        listed = "\nNamed configurations:"
        for named, function in named_runs.items():
            lines = re.split(r"\s*\n\s*", (function.__doc__ or "").strip())
            listed += f"\n  {named}: " + "\n        ".join(lines)
        default = named_runs[name or next(iter(named_runs))]()
        return cli.read_flags(
            type(default),
            args,
            prog,
            doc + listed,
            default=default,
            config=(tyro.conf.OmitArgPrefixes,),
        )

    def train(config: ExperimentConfig) -> dict[str, float]:
        cli.import_tensorflow()
        from training.engine.loop import run_task

        return run_task(config, pkgutil.resolve_name(config.task))

    def main(args: list[str] | None = None) -> int:
        args = sys.argv[1:] if args is None else args

        def verb(config: ExperimentConfig) -> int:
            if config.seeds == 1:
                train(config)
                return 0
            from training.engine.records import run_seeds

            return run_seeds(prog, config, args)

        return cli.run(verb, parse(args), prog)

    return parse, train, main
