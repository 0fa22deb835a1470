"""The arrows between the parts, and what the wheel holds."""

import ast
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parents[1]


def imports(path):
    """Yields the top-level package and whether the import runs at once."""
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
            names = [node.module]
        else:
            continue
        for name in names:
            yield name.split(".")[0], id(node) not in lazy


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
        assert never.isdisjoint(name for name, _ in imports(path)), path


def test_the_library_imports_tensorflow_only_for_text_and_lazily():
    for path in sorted((ROOT / "keras_fixedhead").rglob("*.py")):
        for name, at_once in imports(path):
            if name in ("tensorflow", "tensorflow_text"):
                assert not at_once, path
                assert path.name in (
                    "graph_text.py",
                    "tokenizer.py",
                    "text_classifier_preprocessor.py",
                    "text_embedder_preprocessor.py",
                ), path


def test_the_reproduction_needs_no_tensorflow():
    paths = sorted((ROOT / "training" / "reproduce").glob("*.py"))
    for path in paths:
        names = {name for name, _ in imports(path)}
        assert names.isdisjoint({"tensorflow", "orbit", "official"}), path


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


def test_the_wheel_holds_the_library_alone(wheel):
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "keras_fixedhead"
    }


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
        "keras_fixedhead.theory;"
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
