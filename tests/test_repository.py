"""What GitHub reads: the workflow, the forms and the citation."""

import configparser
import pathlib
import re
import subprocess
import sys

import pytest
import yaml

import keras_fixedhead

ROOT = pathlib.Path(__file__).parents[1]
CI = ".github/workflows/ci.yml"
FORMS = ".github/ISSUE_TEMPLATE"


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("path", "schema"),
    [
        (CI, "vendor.github-workflows"),
        (CI, "custom.github-workflows-require-timeout"),
        (f"{FORMS}/bug.yml", "vendor.github-issue-forms"),
        (f"{FORMS}/feature.yml", "vendor.github-issue-forms"),
        (f"{FORMS}/config.yml", "vendor.github-issue-config"),
        ("CITATION.cff", "vendor.citation-file-format"),
    ],
)
def test_schema(path, schema):
    command = (
        f"check_jsonschema --default-filetype yaml --builtin-schema {schema}"
    )
    result = subprocess.run(
        [sys.executable, "-m", *command.split(), str(ROOT / path)],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_citation_is_of_this_library():
    citation = yaml.safe_load(read("CITATION.cff"))
    setup = configparser.ConfigParser()
    setup.read_string(read("setup.cfg"))
    assert citation["title"].startswith(setup["metadata"]["name"])
    assert citation["license"] == setup["metadata"]["license"]
    assert citation["version"] == keras_fixedhead.__version__


def test_ci_calls_targets_of_the_makefile():
    targets = re.findall("run: make (\\S+)", read(CI))
    assert targets
    assert {*targets} <= {*re.findall("^([a-z-]+):", read("Makefile"), re.M)}


def test_ci_runs_on_the_pythons_of_the_classifiers():
    declared = re.findall("Python :: (3\\.\\d+)", read("setup.cfg"))
    workflow = yaml.safe_load(read(CI))
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == declared
    assert {*re.findall('python-version: "(.*)"', read(CI))} <= {*declared}


def test_ci_installs_the_wheel_as_the_install_page_says():
    commands = re.findall("pip install --constraint.*", read(CI))
    assert len(commands) == 2
    assert {*commands} <= {*read("docs/install.md").splitlines()}


def test_pre_commit_has_no_versions_beside_those_of_the_constraints():
    for repo in yaml.safe_load(read(".pre-commit-config.yaml"))["repos"]:
        assert repo["repo"] == "local"
        assert {hook["language"] for hook in repo["hooks"]} == {"system"}
