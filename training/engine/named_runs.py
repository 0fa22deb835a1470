"""Commands that train one of several named runs."""

import argparse
import pkgutil
import re
import sys
from collections.abc import Callable
from types import ModuleType

import tyro

from training.engine.cli import description, import_tensorflow, run
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
        chosen = argparse.ArgumentParser(
            prog, add_help=False, allow_abbrev=False
        )
        first = next(iter(named_runs))
        chosen.add_argument("--config", default=first, choices=named_runs)
        name = chosen.parse_known_args(args)[0].config
        listed = ""
        for named, function in named_runs.items():
            lines = re.split(r"\s*\n\s*", (function.__doc__ or "").strip())
            listed += f"\n  {named}: " + "\n    ".join(lines)
        default = named_runs[name]()
        return tyro.cli(
            type(default),
            args=args,
            prog=f"python -m {prog}",
            description=f"{description(doc)}\n\nNamed configurations:{listed}",
            default=default,
            config=(tyro.conf.OmitArgPrefixes,),
            use_underscores=True,
        )

    def train(config: ExperimentConfig) -> dict[str, float]:
        import_tensorflow()
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

        return run(verb, parse(args), prog)

    return parse, train, main
