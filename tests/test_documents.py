"""What the documents tell a reader to run, run."""

import json
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]


def python_blocks(path):
    return re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)


def code_cells(path):
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            yield "".join(cell["source"])


@pytest.mark.parametrize(
    "path", sorted((ROOT / "colab").glob("*.ipynb")), ids=lambda p: p.name
)
def test_notebook(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {}
    cells = [code for code in code_cells(path) if not code.startswith("%")]
    for code in cells:
        exec(code, namespace)
    assert cells


def test_the_first_example_of_the_readme_is_the_notebooks():
    first = python_blocks(ROOT / "README.md")[0]
    cells = list(code_cells(ROOT / "colab" / "quickstart.ipynb"))
    assert first.strip() in cells


def test_paths_that_the_documents_link_to_exist():
    documents = [
        path
        for folder in (
            ".",
            "benchmarks",
            "docs",
            "export/deploy",
            "training/launch",
        )
        for path in (ROOT / folder).glob("*.md")
    ]
    for document in documents:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document}: {target}"
