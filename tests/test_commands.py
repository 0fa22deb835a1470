"""Every command: its help, and how it says what is wrong."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from keras_fixedhead import command
from training.engine import cli

ROOT = pathlib.Path(__file__).parents[1]
SLOW_TO_IMPORT = ("jax", "keras", "keras_hub", "tensorflow", "torch")

# Runs commands one after the other, as `python -m` would.
CHILD = """
import contextlib, importlib.machinery, io, json, runpy, sys

commands, slow = json.load(sys.stdin)

class Refuse:
    asked = []

    # To look where a package is, and to read a part of it, is quick.
    def find_spec(self, name, path=None, target=None):
        if name in slow:
            spec = importlib.machinery.PathFinder.find_spec(name, path)
            spec.loader = self
            return spec

    def create_module(self, spec):
        self.asked.append(spec.name)
        raise ImportError(f"{spec.name} is slow to import")

    def exec_module(self, module):
        pass

sys.meta_path.insert(0, Refuse())
answers = []
for name, *arguments in commands:
    out, err = io.StringIO(), io.StringIO()
    Refuse.asked.clear()
    # While Python looks for the module; afterwards it is the path.
    sys.argv = ["-m", *arguments]
    sys.orig_argv = [sys.executable, "-m", name, *arguments]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
            status = None
        except SystemExit as error:
            status = error.code
        except BaseException as error:
            status = repr(error)
    answers.append([status, out.getvalue(), err.getvalue(), [*Refuse.asked]])
print(json.dumps(answers))
"""


def commands():
    """Names of all modules that end in an exit status."""
    for part in ("training", "export", "keras_fixedhead"):
        for path in sorted((ROOT / part).rglob("*.py")):
            _, main, call = path.read_text(encoding="utf-8").partition(
                'if __name__ == "__main__":'
            )
            if main and "sys.exit(" in call:
                name = path.relative_to(ROOT).with_suffix("")
                yield ".".join(name.parts).removesuffix(".__main__")


COMMANDS = tuple(commands())
# What each does without arguments, where that is no error.
WITHOUT_ARGUMENTS = {"keras_fixedhead.theory": "draws"}
WRONG = {
    "training.curves": ["no/folder"],
    "training.finetune": ["--config", "none"],
    "training.launch": ["worker"],
    "training.reproduce": ["--data=no", "--workdir=no", "--scale=none"],
    "export.search": ["--query", "a"],
    "export.serve": ["--model_base_path", "no/folder"],
    "export.verify": ["no/folder"],
    "keras_fixedhead.diagnostics": ["--model=no", "--texts=no", "--count=0"],
    "keras_fixedhead.planner": ["--preset", "none"],
    "keras_fixedhead.theory": ["--output", "no/picture.png"],
}


@pytest.fixture(scope="module")
def answers():
    """Status, output, errors and slow imports of each call."""
    calls = [[name, "--help"] for name in COMMANDS]
    calls += [[name] for name in COMMANDS if name not in WITHOUT_ARGUMENTS]
    calls += [[name, *arguments] for name, arguments in WRONG.items()]
    child = subprocess.run(
        [sys.executable, "-c", CHILD],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "80", "TERM": "dumb"},
        input=json.dumps([calls, SLOW_TO_IMPORT]),
        capture_output=True,
        text=True,
        check=True,
    )
    return {
        (name, *arguments): answer
        for (name, *arguments), answer in zip(calls, json.loads(child.stdout))
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_help_waits_for_no_slow_import(name, answers):
    status, out, err, imports = answers[name, "--help"]
    assert imports == []
    assert (status, err) == (0, "")
    assert f"python -m {name} " in out
    if name.startswith("training."):
        assert "\n\n\n" not in out


@pytest.mark.parametrize(
    "name", [name for name in COMMANDS if name not in WITHOUT_ARGUMENTS]
)
def test_a_call_without_arguments_is_no_traceback(name, answers):
    status, out, err, _ = answers[name,]
    assert status in (1, 2), err
    assert out == "" and name in err


@pytest.mark.parametrize("name", WRONG)
def test_errors_begin_alike(name, answers):
    status, out, err, _ = answers[name, *WRONG[name]]
    assert status in (1, 2), err
    assert out == ""
    assert err.splitlines()[-1].startswith(f"{name}: error: "), err


@pytest.mark.parametrize("run", [command.run, cli.run])
def test_an_interrupt_is_no_traceback(run, capsys):
    def interrupted(config):
        raise KeyboardInterrupt

    assert run(interrupted, None, "package.command") == 130
    error = capsys.readouterr().err
    assert error == "package.command: error: interrupted\n"
