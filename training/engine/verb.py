"""The commands that train: named runs, flags that change them, and the run."""

import importlib
import sys
from types import ModuleType

from training.engine import cli
from training.engine.configs import ExperimentConfig


class TrainingVerb:
    """A command that trains one of several kinds of runs.

    Args:
        name: What the user calls, such as `"training.finetune"`.
        description: What it does, for `--help`.
        configs: Modules, each with `NAMED_RUNS`, functions that return an
            `ExperimentConfig`, by name.
    """

    def __init__(self, name: str, description: str, *configs: ModuleType):
        self._name, self._description = name, description
        self._named_runs = {}
        for module in configs:
            self._named_runs |= module.NAMED_RUNS

    def parse(self, args: list[str] | None = None) -> ExperimentConfig:
        """Reads a run from the command line.

        Args:
            args: The command line; None is that of the process.

        Returns:
            A run of the dataclass of the named run that `--config` chooses.
        """
        return cli.parse(self._named_runs, self._name, self._description, args)

    def train(self, config: ExperimentConfig) -> dict[str, float]:
        """Trains, or continues, a run; see `training.engine.run.run_task`."""
        cli.import_tensorflow()
        from training.engine.run import run_task

        module, _, task = config.task.partition(":")
        return run_task(config, getattr(importlib.import_module(module), task))

    def main(self, args: list[str] | None = None) -> int:
        """Runs the command and returns its exit status."""
        args = sys.argv[1:] if args is None else args
        config = self.parse(args)
        if config.seeds == 1:
            return cli.run(self.train, config, self._name)
        from training.engine.seeds import run_seeds

        ended = []
        status = cli.run(
            lambda config: ended.append(run_seeds(self._name, config, args)),
            config,
            self._name,
        )
        return status or ended[0]
