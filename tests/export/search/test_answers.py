"""Queries, whatever is in them, and what an index answers to them."""

import io
import json
import os
import pty
import subprocess
import sys

import numpy as np
import pytest
import rich.console

from export import cli, model_source
from export.index import index_folder
from export.search import __main__ as search
from export.search import answers as answering
from keras_fixedhead import retrieval

HOSTILE = [
    "a " * 500_000,
    "w" * 1_000_000,
    "西西弗斯 سيزيف Сизиф",
    "😀" * 40,
    "a\x00b\x07\x1b[2J\u202e\ufeff",
    "[PAD] [MASK] [UNK]",
]
WRONG = {
    b'{"query": "\\u0001\\u200b"}': "'query' is blank",
    b'{"query": "a \\ud800"}': "holds a lone surrogate",
    b'{"query": "\xff"}': "must be in UTF-8",
    b'{"query": 7}': "'query' must be a string",
    b'{"question": "a"}': "'text' must be a string",
    b"[" * 100_000: "must be JSON",
}


def run(*words):
    return cli.run(search.main, search.Arguments, [*map(str, words)])


@pytest.fixture
def files(tmp_path):
    """Paths of queries and answers, and a function that reads the answers."""
    output = tmp_path / "answers.jsonl"

    def read():
        return [json.loads(line) for line in output.read_bytes().splitlines()]

    return tmp_path / "queries.jsonl", output, read


@pytest.fixture
def ask(made, opened):
    """A function of texts, and of the number of hits, that ranks them."""
    index = index_folder.load(made)

    def ask(texts, k=11):
        return answering.answer(index, opened, texts, k, "encoder")

    return ask


def test_answers_a_file(made, files, base_path, oracle, capsys):
    queries, output, read = files
    lines = [
        b'{"query": "brown fox", "id": 7}',
        b'{"text": "read lines", "_id": "q"}',
        *(json.dumps({"query": query}).encode() for query in HOSTILE),
        b"  ",
        *WRONG,
    ]
    queries.write_bytes(b"\n".join(lines))
    words = ["--queries", queries, "--output", output, "--k", "3"]
    words += ["--saved_model", base_path, "--ranker", "encoder"]
    assert run("--index", made, *words) == 1
    answers = read()
    right = ["brown fox", "read lines", *HOSTILE]
    assert [answer["id"] for answer in answers[:3]] == [7, "q", None]
    for answered, query in zip(answers, right):
        assert answered["query"] == query
        # Texts are cut: the oracle need not read a megabyte.
        names, scores = oracle(query[:2000])
        hits = answered["hits"]
        assert [hit["rank"] for hit in hits] == [1, 2, 3]
        assert [hit["id"] for hit in hits] == names[:3]
        found = [hit["score"] for hit in hits]
        np.testing.assert_allclose(found, scores[:3], atol=1e-5)
        assert "text" not in hits[0]
    wrong = zip(answers[len(right) :], WRONG.values(), strict=True)
    for line, (answered, message) in enumerate(wrong, len(right) + 2):
        assert f"queries.jsonl:{line}: " in answered["error"]
        assert message in answered["error"]
        assert "hits" not in answered
    assert f"{len(WRONG)} queries have an error" in capsys.readouterr().out


def test_answers_many(files, ask, documents, monkeypatch):
    monkeypatch.setattr(answering, "_CHUNK", 3)
    queries, output, read = files
    texts = [f"sum {'a' * n}" for n in range(7)]
    queries.write_text("\n".join(json.dumps({"query": t}) for t in texts))
    assert answering.answer_file(str(queries), output, ask, True) == 0
    answers = read()
    assert [answer["query"] for answer in answers] == texts
    # As many hits as there are documents, with what they say.
    hits = {hit["id"]: hit["text"] for hit in answers[6]["hits"]}
    assert hits == documents


def test_answers_queries(made, server, oracle, capsys):
    words = ["--query", "a [fox]", "--query", "dog\x1b[31m\n", "--k", "2"]
    words += ["--ranker", "encoder", "--server", server.rest_url]
    assert run("--index", made, *words) == 0
    printed = capsys.readouterr().out
    said = " ".join(printed.split())
    assert "by tiny version 3; ranked by encoder" in said
    assert "a [fox]" in printed
    assert printed.count("score") == 2
    # What would be obeyed by a terminal is not printed.
    assert "\x1b[31m" not in printed
    for query in ("a [fox]", "dog\x1b[31m\n"):
        for name in oracle(query)[0][:2]:
            assert name in printed
    words = ["--ranker", "bm25", "--query", "zebra [crossing]"]
    assert run("--index", made, *words) == 0
    assert "zebra [crossing]: no document found" in capsys.readouterr().out


@pytest.fixture
def ranked(oracle, documents):
    """A function of ranker and query to documents, best first."""

    def ranked(ranker, query):
        encoder_list = oracle(query)[0]
        found = retrieval.BM25(documents.values()).search([query], 5)
        bm25_list = [f"d{row + 1}" for row in found.documents[0] if row >= 0]
        if ranker != "fusion":
            return encoder_list if ranker == "encoder" else bm25_list
        gains = dict.fromkeys(documents, 0.0)
        for names in (encoder_list, bm25_list):
            for place, name in enumerate(names):
                gains[name] += 1 / (61 + place)
        return sorted(gains, key=lambda name: -gains[name])

    return ranked


# No ranker is the fusion.
@pytest.mark.parametrize(
    "ranker",
    ["encoder", "bm25", None],
)
def test_ranks_as_asked(
    made, server, files, capsys, monkeypatch, ranked, ranker
):
    """A query, a file and a conversation; BM25 without a model."""
    model = [] if ranker == "bm25" else ["--server", server.grpc_url]
    words = ["--index", made, *model, "--k", "2"]
    words += ["--ranker", ranker] if ranker else []
    ranker = ranker or "fusion"

    def run_and_read(*more):
        assert run(*words, *more) == 0
        said = capsys.readouterr().out
        rows = [line for line in said.splitlines() if "│ d" in line]
        return said, [row.split("│")[3].strip() for row in rows]

    wanted = ranked(ranker, "dog file")[:2]
    said, names = run_and_read("--query", "dog file")
    assert f"ranked by {ranker}" in said
    assert names == wanted
    queries, output, read = files
    queries.write_text('{"query": "dog file"}\n{"query": "sum"}')
    run_and_read("--queries", queries, "--output", output)
    for answered in read():
        names = [hit["id"] for hit in answered["hits"]]
        assert names == ranked(ranker, answered["query"])[:2]
    stdin = io.StringIO("dog file\n\x01\n")
    stdin.isatty = lambda: True
    monkeypatch.setattr(sys, "stdin", stdin)
    said, names = run_and_read()
    assert names == wanted
    assert "error: The query '\\x01' is blank" in said


def test_an_index_without_bm25(made, tmp_path, server, oracle, capsys):
    """Such as an earlier version made."""
    rewrite_manifest(made, tmp_path, without=("bm25", "bm25_bytes"))
    words = ["--index", tmp_path, "--query", "a dog"]
    words += ["--server", server.grpc_url]
    for ranker in ([], ["--ranker", "fusion"], ["--ranker", "bm25"]):
        assert run(*words, *ranker) == 1
        error = capsys.readouterr().err
        assert "holds no BM25" in error and "--ranker encoder" in error
        assert error.count("\n") == 1
    assert run(*words, "--ranker", "encoder") == 0
    assert oracle("a dog")[0][0] in capsys.readouterr().out


def test_converses(ask, capsys, monkeypatch):
    asked = []

    def ask_or_fail(queries):
        asked.extend(queries)
        if len(asked) == 2:
            raise OSError("the server is [away]")
        if len(asked) == 3:
            raise KeyboardInterrupt
        return ask(queries, 1)

    typed = b"a fox\n\n  \nlost\nslow\nbad \xff\ndog\x01\n:q\nnever\n"
    stdin = io.TextIOWrapper(io.BytesIO(typed), errors="surrogateescape")
    monkeypatch.setattr(sys, "stdin", stdin)
    answering.converse(ask_or_fail, rich.console.Console())
    assert asked == ["a fox", "lost", "slow", "dog\x01"]
    printed = capsys.readouterr().out
    assert printed.count("rank") == 2
    assert "error: the server is [away]" in printed
    assert "holds a lone surrogate" in printed
    # The end of the input (Ctrl-D) ends it, too.
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    answering.converse(ask_or_fail, rich.console.Console())


@pytest.mark.slow
def test_converses_in_a_terminal(made, base_path):
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "export.search", "--index", made,
         "--saved_model", base_path],
        stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    for wanted, typed in (
        (b"query> ", "西 fox\n".encode()),
        (b"rank", b""),
        (b"query> ", b"\xff\n"),
        (b"surrogate", b""),
        (b"query> ", b"\x04"),
    ):
        while wanted not in shown:
            shown += os.read(ours, 1024)
        shown = shown.partition(wanted)[2]
        os.write(ours, typed)
    assert process.wait(60) == 0
    os.close(ours)


def rewrite_manifest(made, folder, without=(), **model):
    """Copies the manifest with another model, or without some keys."""
    manifest = json.loads((made / "index.json").read_text())
    manifest["model"] |= model
    for key in without:
        del manifest[key]
    for path in made.iterdir():
        if path.name != "index.json":
            (folder / path.name).symlink_to(path)
    (folder / "index.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"version": 2, "sha256": None}, "tiny version 2, the other tiny"),
        ({"sha256": "01234"}, "tiny version 3 with the SHA-256 01234, the"),
    ],
)
def test_another_model(made, tmp_path, opened, model, message):
    rewrite_manifest(made, tmp_path, **model)
    with pytest.raises(ValueError, match=message):
        index_folder.load(tmp_path).check(opened)


def test_another_model_of_the_same_name(made, opened, tmp_path):
    rewrite_manifest(made, tmp_path, sha256=None)
    searched = index_folder.load(tmp_path)
    searched.check(opened)

    def ask(batch, signature):
        return -opened.ask(batch, signature)

    other = model_source.Encoder(opened.model, ask, opened.signatures, 2, 1)
    with pytest.raises(ValueError, match="embeds its documents differently"):
        searched.check(other)


@pytest.mark.slow
def test_serves_itself(made, base_path, oracle, capsys):
    words = ["--serve", base_path, "--query", "a dog", "--ranker", "encoder"]
    assert run("--index", made, *words) == 0
    assert oracle("a dog")[0][0] in capsys.readouterr().out


MADE = ["--index", "MADE"]
QUERY = [*MADE, "--query", "a"]
BM25 = [*MADE, "--ranker", "bm25"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (MADE, "There is no query"),
        (QUERY, "Pass one of `saved_model`"),
        (["--query", "a"], "`index` must be the folder"),
        (["--index", "no", "--query", "a", "--serve", "x"], "no complete ind"),
        ([*QUERY, "--k", "0"], "`k` must be"),
        ([*MADE, "--queries", "-"], "`output` belongs to"),
        (["--query", "a", "--queries", "-"], "one of `query`, `queries` and"),
        (["--collection", "BEIR", "--output", "-"], "`output` belongs to"),
        ([*QUERY, "--server", "nowhere"], "`server` must be"),
        (
            [*QUERY, "--serve", "nowhere"],
            "did not start: export.serve: error: `model_base_path`",
        ),
        (
            ["--collection", "BEIR", "--output", "MADE", "--split", "no"],
            "no.tsv",
        ),
        ([*BM25, "--query", "a \udcff"], "holds a lone surrogate"),
        ([*BM25, "--query", "\x01\xad"], "query '\\x01\\xad' is blank"),
    ],
)
def test_command_line_errors(folder, made, capsys, monkeypatch, words, message):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    paths = {"MADE": made, "BEIR": folder}
    assert run(*(paths.get(word, word) for word in words)) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
