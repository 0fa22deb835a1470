"""The arrows between the parts, and what the wheel holds."""

import ast
import configparser
import graphlib
import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_bytes

import pytest
from packaging.requirements import Requirement

ROOT = pathlib.Path(__file__).parents[1]


def imports(path):
    """Yields each module imported, and whether that runs at once."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lazy = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            names.append(node.module)
        else:
            continue
        for name in names:
            yield name, id(node) not in lazy


def packages(path):
    return {name.split(".")[0] for name, _ in imports(path)}


@pytest.mark.parametrize(
    ("part", "never"),
    [
        ("keras_fixedhead", {"training", "export", "orbit", "official"}),
        ("training", {"export"}),
        ("export", {"training"}),
    ],
)
def test_arrows(part, never):
    paths = sorted((ROOT / part).rglob("*.py"))
    assert paths
    for path in paths:
        assert never.isdisjoint(packages(path)), path


def test_no_files_import_each_other():
    """Not even lazily, or for types."""
    graph = {}
    for folder in ("keras_fixedhead", "training", "export", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            graph[name] = {other for other, _ in imports(path)}
    assert len(graph) > 150
    graphlib.TopologicalSorter(graph).prepare()  # raises if there is a circle


_TASKS = {path.parent.name for path in ROOT.glob("training/*/task.py")}
_TASKS -= {"engine", "corpus"}


def rooms(path):
    """Returns the folders of `training` whose modules a file imports."""
    names = (name.split(".") for name, _ in imports(path))
    return {parts[1] for parts in names if parts[0] == "training" and parts[1:]}


def test_tasks_know_the_engine_and_no_other_task():
    allowed = {
        "engine": {"engine", "curves"},
        "corpus": {"engine", "corpus"},
        **{task: {"engine", "corpus", task} for task in _TASKS},
    }
    assert len(_TASKS) >= 7
    for room, known in allowed.items():
        paths = sorted((ROOT / "training" / room).glob("*.py"))
        assert paths
        for path in paths:
            assert rooms(path) <= known, path


def test_the_library_imports_tensorflow_only_for_text_and_lazily():
    for path in sorted((ROOT / "keras_fixedhead").rglob("*.py")):
        for name, at_once in imports(path):
            if name.split(".")[0] in ("tensorflow", "tensorflow_text"):
                assert not at_once, path
                assert path.name in (
                    "graph_text.py",
                    "task.py",
                    "batched_embedding.py",
                    "tokenizer.py",
                    "text_classifier.py",
                    "text_embedder.py",
                ), path


def test_the_reproduction_needs_no_tensorflow():
    """Nor do the files of `training` that it imports."""
    waiting = sorted((ROOT / "training" / "reproduce").glob("*.py"))
    seen = set()
    while waiting:
        path = waiting.pop()
        seen.add(path)
        for name, at_once in imports(path):
            if at_once or "reproduce" in path.parts:
                package = name.split(".")[0]
                assert package not in ("tensorflow", "orbit", "official"), path
            ours = ROOT / f"{name.replace('.', '/')}.py"
            if name.startswith("training.") and at_once and ours.exists():
                waiting += {ours} - seen
    assert len(seen) > 12


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    # Of a copy: setuptools leaves a build folder in what it builds.
    source = shutil.copytree(
        ROOT,
        folder / "source",
        ignore=shutil.ignore_patterns(".*", "runs", "build", "*.egg-info"),
    )
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps",
         "--no-build-isolation", "--wheel-dir", folder, source],
        check=True,
    )  # fmt: skip
    [path] = folder.glob("*.whl")
    return path


def test_the_wheel_holds_the_whole_library_alone(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {n for n in archive.namelist() if ".dist-info/" not in n}
    assert names == {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "keras_fixedhead").rglob("*.py")
    }


def dependency_groups():
    text = (ROOT / "pyproject.toml").read_text()
    return tomllib.loads(text)["dependency-groups"]


def test_the_wheel_requires_what_the_library_imports(wheel):
    with zipfile.ZipFile(wheel) as archive:
        [name] = [n for n in archive.namelist() if n.endswith("/METADATA")]
        metadata = message_from_bytes(archive.read(name))
    extras = ["jax", "pictures", "retrieval", "torch"]
    assert sorted(metadata.get_all("Provides-Extra")) == extras
    required = {
        Requirement(line).name for line in metadata.get_all("Requires-Dist")
    }
    groups = dependency_groups()
    for group in ("training", "export", "beam"):
        names = {Requirement(line).name for line in groups[group]}
        assert names.isdisjoint(required), group


def test_without_tensorflow_leaves_out_tensorflow_text_alone():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    ours = setup["options"]["install_requires"].split()
    required = {
        str(requirement)
        for requirement in map(
            Requirement, ours + importlib.metadata.requires("keras-hub")
        )
        if "extra" not in str(requirement.marker)
    }
    left_out = {
        line
        for line in required
        if Requirement(line).name in ("keras-hub", "tensorflow-text")
    }
    group = dependency_groups()["without-tensorflow"]
    assert {str(Requirement(line)) for line in group} == (
        required - left_out | {"grain"}
    )


def test_every_extra_and_group_that_is_named_exists():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    names = {"extra": set(), "group": set()}
    for part in (".", "benchmarks", "colab", "docs", "keras_fixedhead",
                 "training", "export", "tests"):  # fmt: skip
        files = (ROOT / part).glob("*" if part == "." else "**/*")
        for path in files:
            if path.name not in ("Makefile", "Dockerfile") and (
                path.suffix not in (".md", ".py", ".ipynb", ".toml")
            ):
                continue
            text = path.read_text(encoding="utf-8")
            for extras in re.findall(
                r"""(?<=['"\s])(?:\.|keras_fixedhead)\[([a-z,]+)\]""", text
            ):
                names["extra"].update(extras.split(","))
            names["group"].update(re.findall(r"--group ([a-z-]+)", text))
    assert {"pictures", "retrieval"} <= names["extra"]
    assert names["extra"] <= set(setup["options.extras_require"])
    assert {"training", "export"} <= names["group"] <= set(dependency_groups())


@pytest.mark.slow
def test_the_wheel_imports_outside_the_clone(wheel, tmp_path):
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps",
         "--target", tmp_path / "site", wheel],
        check=True,
    )  # fmt: skip
    code = (
        "import keras_fixedhead as k, keras_fixedhead.convert, "
        "keras_fixedhead.diagnostics, keras_fixedhead.planner, "
        "keras_fixedhead.shrink, keras_fixedhead.theory;"
        "print(k.__file__, k.__version__);"
        "k.FixedMultiHeadAttention(7)"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    file, version = printed.split()
    assert pathlib.Path(file).is_relative_to(tmp_path / "site")
    assert version in wheel.name
