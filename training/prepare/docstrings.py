"""Query-document pairs from the docstrings of the installed packages."""

import ast
import collections
import concurrent.futures
import inspect
import multiprocessing
import os
import pathlib
import re
import sysconfig
import warnings
from collections.abc import Sequence

from keras_fixedhead.progress import progress
from training.corpus.pairs import Pair

# A shorter query says nothing to search for ("Return name."); a longer one is
# not a summary.
_QUERY_WORDS = range(3, 65)
_MIN_DOCUMENT_WORDS = 16

_SKIPPED_FOLDERS = {
    # listed by themselves, as the folders of installed packages
    "dist-packages",
    "site-packages",
    "test",
    "testdata",
    "tests",
    # this project, whether it is installed or not
    "keras_fixedhead",
}
_SKIPPED_FILE = re.compile(r"(test_.*|.*_tests?|conftest|setup)\.py")
_FILES_PER_TASK = 32
# Faster to read here than to start other processes.
_FEW_FILES = 1000

_SENTENCE_END = re.compile(r"[.!?][\"'`)]*(?=\s+[A-Z`\"'(])")
_ABBREVIATION = re.compile(r"\b(?:cf|e\.g|eq|etc|fig|i\.e|no|vs)\.$", re.I)
_LINE_OF_MARKS = re.compile(r"\W{4,}")
_WORD = re.compile(r"[^\W\d_]{2}")
_DEPRECATED = re.compile(r"\W*deprecated\b", re.I)
# Headings, notices and signatures in the place of a summary.
_BOILERPLATE = re.compile(
    r"\W*(?:(?:alias|args|arguments|attributes|copyright|examples?|license|"
    r"note|parameters|raises|returns?|see|usage|warning|yields)\b\W*"
    r"(?:$|:|also\b|for\b|of\b)|(?:do not edit|same as|todo)\b|"
    r"[\w.]+\(.*\)(?:$| *->))",
    re.I,
)


def installed_folders() -> list[pathlib.Path]:
    """Folders of the standard library and of the installed packages."""
    paths = sysconfig.get_paths()
    folders = [paths[name] for name in ("stdlib", "purelib", "platlib")]
    return [pathlib.Path(path) for path in dict.fromkeys(folders)]


def read_docstrings(
    folders: Sequence[str | os.PathLike[str]],
) -> tuple[list[Pair], dict[str, int]]:
    """Reads the public docstrings of the modules and packages in folders.

    The query is the summary sentence, the document the rest. Files are never
    imported. Also counts what was left out, by reason.
    """
    modules = [module for folder in folders for module in _list_modules(folder)]
    pairs: dict[str, Pair] = {}
    left_out: collections.Counter[str] = collections.Counter()
    # Processes that inherit no threads or memory of this one.
    spawn = multiprocessing.get_context("spawn")
    with (
        concurrent.futures.ProcessPoolExecutor(mp_context=spawn) as pool,
        progress("Reading docstrings", len(modules)) as advance,
    ):
        if len(modules) > _FEW_FILES:
            files = pool.map(_read_file, modules, chunksize=_FILES_PER_TASK)
        else:
            files = map(_read_file, modules)
        for found, file_left_out in files:
            advance(1)
            left_out.update(file_left_out)
            for pair in found:
                # The getter of a property comes before its setter.
                left_out["redefinitions"] += pair.id in pairs
                pairs.setdefault(pair.id, pair)
    return list(pairs.values()), dict(+left_out)


def split_docstring(docstring: str) -> tuple[str, str]:
    """Splits a docstring into its first sentence or paragraph, and the rest."""
    text = re.sub(r"[ \t]*\n", "\n", inspect.cleandoc(docstring))
    paragraph, _, rest = text.partition("\n\n")
    lines = paragraph.splitlines()
    summary = " ".join(
        " ".join(
            line for line in lines if not _LINE_OF_MARKS.fullmatch(line)
        ).split()
    )
    for end in _SENTENCE_END.finditer(summary):
        if not _ABBREVIATION.search(summary, 0, end.start() + 1):
            rest = f"{summary[end.end() :]}\n\n{rest}"
            summary = summary[: end.end()]
            break
    return summary, re.sub(r"\n{3,}", "\n\n", rest).strip()


def _list_modules(folder):
    """Yields (path, dotted name) of the public modules under `folder`."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if _is_public(name) and name not in _SKIPPED_FOLDERS
        )
        package = pathlib.Path(parent).relative_to(folder).parts
        for name in sorted(names):
            stem, extension = os.path.splitext(name)
            path = os.path.join(parent, name)
            # A pipe named like a module would block its reader.
            if (
                extension != ".py"
                or _SKIPPED_FILE.fullmatch(name)
                or not os.path.isfile(path)
            ):
                continue
            if stem == "__init__" and package:
                yield path, ".".join(package)
            elif _is_public(stem):
                yield path, ".".join((*package, stem))


def _is_public(name: str) -> bool:
    return name.isidentifier() and not name.startswith("_")


def _read_file(module):
    """Returns the pairs of a module, and counts what is left out of it."""
    path, name = module
    try:
        with warnings.catch_warnings():
            # Other people's strings have invalid escapes.
            warnings.simplefilter("ignore")
            tree = ast.parse(pathlib.Path(path).read_bytes())
    except OSError:
        return [], collections.Counter({"unreadable files": 1})
    # ValueError: null bytes. The last two: an expression nested too deeply.
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return [], collections.Counter({"unparsable files": 1})
    pairs, left_out = [], collections.Counter()
    for dotted_name, docstring in _public_docstrings(tree, name):
        query, document = split_docstring(docstring)
        reason = _reason_against(query, document)
        if reason is None:
            pairs.append(Pair(dotted_name, query, document))
        else:
            left_out[reason] += 1
    return pairs, left_out


def _public_docstrings(tree, module):
    """Yields (dotted name, docstring) of a module and what it defines."""
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    # A stack, as files may nest deeper than calls can.
    stack = [(tree, module)]
    while stack:
        node, name = stack.pop()
        if isinstance(node, ast.Module | ast.ClassDef | functions):
            docstring = ast.get_docstring(node, clean=False)
            if docstring:
                yield name, docstring
        if isinstance(node, functions):
            continue
        for child in reversed(list(ast.iter_child_nodes(node))):
            if isinstance(child, ast.ClassDef | functions):
                if _is_public(child.name):
                    stack.append((child, f"{name}.{child.name}"))
            # A branch defines names in the body that it is in.
            elif isinstance(child, ast.stmt | ast.excepthandler):
                stack.append((child, name))


def _reason_against(query: str, document: str) -> str | None:
    """Why a pair is of no use for search, or None."""
    query_words = _count_words(query)
    if query_words < _QUERY_WORDS.start:
        return "short queries"
    if query_words >= _QUERY_WORDS.stop:
        return "long queries"
    if _count_words(document) < _MIN_DOCUMENT_WORDS:
        return "short documents"
    if _BOILERPLATE.match(query):
        return "queries that are headings"
    if _DEPRECATED.match(query) or _DEPRECATED.match(document):
        return "deprecated names"
    try:
        (query + document).encode()
    except UnicodeEncodeError:
        return "docstrings outside Unicode"
    return None


def _count_words(text: str) -> int:
    return sum(_WORD.search(word) is not None for word in text.split())
