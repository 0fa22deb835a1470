"""Reading docstrings: what is public, how they split, hostile files."""

import os
import textwrap

import pytest

from training.prepare import docstrings
from training.prepare.docstrings import (
    installed_folders,
    read_docstrings,
    split_docstring,
)

# Long enough to be a document.
REST = (
    "Alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu. " * 2
)


def docstring(summary):
    # Escaped line ends leave the indentation of the source alone.
    return f'"""{summary}\\n\\n{REST}"""'


def write(folder, name, source):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(source, str):
        source = textwrap.dedent(source).encode()
    path.write_bytes(source)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Made-up packages."""
    folder = tmp_path_factory.mktemp("packages")
    write(folder, "zoo/__init__.py", docstring("Animals of every kind."))
    write(
        folder,
        "zoo/cats.py",
        f"""
        class Cat:
            {docstring("Represents a small cat.")}
            def purr(self):
                {docstring("Purrs for a while.")}
                def inner():
                    {docstring("Hidden inside a function.")}
            async def sleep(self):
                {docstring("Sleeps until it is fed.")}
            @property
            def name(self):
                {docstring("The name it hears to.")}
            @name.setter
            def name(self, value):
                {docstring("Another summary, of the setter.")}
            def __len__(self):
                {docstring("Has underscores around it.")}
        class _Private:
            def purr(self):
                {docstring("Belongs to a private class.")}
        if True:
            try:
                import fast
            except ImportError:
                def fallback():
                    {docstring("Defined in a branch.")}
        raise RuntimeError("this module was imported")
        """,
    )
    write(
        folder,
        "zoo/useless.py",
        f"""
        def two_words():
            {docstring("Return name.")}
        def nothing_to_find():
            '''Says everything in one line. Really everything.'''
        def heading():
            {docstring("Args: one and two and three.")}
        def old():
            '''Feeds a small cat. Deprecated: {REST}'''
        def rambling():
            {docstring("word " * 65)}
        def unwritable():
            '''Holds a lone surrogate. Here: \\ud800 {REST}'''
        """,
    )
    for name in (
        "_vendor/dog.py",
        "zoo/_dog.py",
        "zoo/tests/dog.py",
        "zoo/dog_test.py",
        "zoo-1.0.dist-info/dog.py",
        "keras_fixedhead/dog.py",
    ):
        write(folder, name, docstring("Should not be read at all."))
    for number, bad in enumerate(
        (
            b"def (:",
            b"x = 1\0",
            b"# coding: no-such-codec\n",
            b"x = '\xff\xfe'\n",
            b"-" * 100_000 + b"1",
            b"a" + b".a" * 100_000,
        )
    ):
        write(folder, f"bad/bad{number}.py", bad)
    write(folder, "good/escape.py", docstring("Has an invalid escape \\d."))
    write(folder, "good/empty.py", "")
    write(
        folder,
        "good/latin.py",
        f"# coding: latin-1\n{docstring('Une étude sur le café.')}".encode(
            "latin-1"
        ),
    )
    os.mkfifo(folder / "good" / "pipe.py")
    os.symlink(folder, folder / "good" / "loop")
    os.symlink(folder / "nowhere.py", folder / "good" / "dangling.py")
    (folder / "good" / "folder.py").mkdir()
    return folder


@pytest.fixture(scope="module")
def read(folder):
    """The pairs that are read, by their names, and what was left out."""
    pairs, left_out = read_docstrings([folder])
    return {pair.id: pair for pair in pairs}, left_out


def test_reads_public_names_in_order(read):
    pairs, left_out = read
    assert [(name, pair.query) for name, pair in pairs.items()] == [
        ("good.escape", "Has an invalid escape \\d."),
        ("good.latin", "Une étude sur le café."),
        ("zoo", "Animals of every kind."),
        ("zoo.cats.Cat", "Represents a small cat."),
        ("zoo.cats.Cat.purr", "Purrs for a while."),
        ("zoo.cats.Cat.sleep", "Sleeps until it is fed."),
        ("zoo.cats.Cat.name", "The name it hears to."),
        ("zoo.cats.fallback", "Defined in a branch."),
    ]
    assert all(pair.document == REST.strip() for pair in pairs.values())
    assert left_out == {
        "unparsable files": 6,
        "redefinitions": 1,
        "short queries": 1,
        "short documents": 1,
        "queries that are headings": 1,
        "deprecated names": 1,
        "long queries": 1,
        "docstrings outside Unicode": 1,
    }


@pytest.mark.slow
def test_processes_read_the_same(folder, read, monkeypatch):
    monkeypatch.setattr(docstrings, "_FEW_FILES", 0)
    pairs, left_out = read_docstrings([folder])
    assert ({pair.id: pair for pair in pairs}, left_out) == read


@pytest.mark.parametrize(
    "text, query, document",
    [
        ("Feeds a cat.", "Feeds a cat.", ""),
        ("Feeds a cat\n\n  and dogs", "Feeds a cat", "and dogs"),
        # A summary wrapped over lines, and a rest with structure.
        (
            "Feeds a\n    cat.\n    \n    Args:\n      a: b  \n\n\n\n    End.",
            "Feeds a cat.",
            "Args:\n  a: b\n\nEnd.",
        ),
        # More than a sentence in the first paragraph.
        ("It is. Then\ngoes.\n\nMore.", "It is.", "Then goes.\n\nMore."),
        ('Says "feed." Then leaves.', 'Says "feed."', "Then leaves."),
        ("Feeds, e.g. Cats. Dogs too.", "Feeds, e.g. Cats.", "Dogs too."),
        ("Uses v1.2 of it. lower case", "Uses v1.2 of it. lower case", ""),
        # A title between rules.
        ("=====\nTitle\n=====\n\nText.", "Title", "Text."),
        ("", "", ""),
        ("\n \n", "", ""),
    ],
)
def test_split_docstring(text, query, document):
    assert split_docstring(text) == (query, document)


def test_installed_folders_hold_library_and_packages():
    folders = installed_folders()
    for name in ("json", "pytest"):
        assert any((folder / name).is_dir() for folder in folders)
    assert len(set(folders)) == len(folders)
