"""What the documents tell a reader to run, run."""

import pathlib
import re

import griffe
import jupytext
import pytest

ROOT = pathlib.Path(__file__).parents[1]

NOTEBOOKS = sorted({path.stem for path in (ROOT / "colab").glob("[0-9]*")})


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_is_its_text_and_checks_itself(name):
    def cells(notebook):
        return [(cell.cell_type, cell.source) for cell in notebook.cells]

    text, generated = (
        jupytext.read(ROOT / "colab" / f"{name}.{suffix}")
        for suffix in ("py", "ipynb")
    )
    assert cells(generated) == cells(text), "`make notebooks` writes it"
    assert not any(cell.get("outputs") for cell in generated.cells)
    assert any(
        cell.cell_type == "code" and "assert " in cell.source
        for cell in text.cells
    )
    badge = f"REPOSITORY_URL/blob/main/colab/{name}.ipynb"
    assert badge in text.cells[0].source


def test_paths_that_the_documents_link_to_exist():
    for document in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        text = document.read_text(encoding="utf-8")
        links = re.findall(r"\]\(([^)#:]+)[#)]", text)
        pictures = re.findall(r'src(?:set)?="([^"]+)"', text)
        for target in (*links, *pictures):
            assert (document.parent / target).exists(), f"{document}: {target}"


def test_each_fence_of_the_documents_names_its_language():
    for document in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        fences = re.findall("^```(.*)$", document.read_text("utf-8"), re.M)
        assert {*fences[::2]} <= {"bash", "python", "text", "yaml"}, document
        assert {*fences[1::2]} <= {""}, document


def public_modules(package):
    yield package
    for member in package.modules.values():
        if not member.name.startswith("_"):
            yield from public_modules(member)


@pytest.mark.parametrize("name", ["keras_fixedhead", "export.client"])
def test_docstrings_read_as_the_reference_reads_them(name, caplog):
    package = griffe.load(name, search_paths=[ROOT])
    docstrings = [
        member.docstring
        for module in public_modules(package)
        for owner in (module, *module.classes.values())
        for member in (owner, *owner.functions.values())
        if member.docstring
    ]
    for docstring in docstrings:
        docstring.parse(
            "google", warn_unknown_params=False, warn_missing_types=False
        )
    assert len(docstrings) > 9
    assert not caplog.messages
