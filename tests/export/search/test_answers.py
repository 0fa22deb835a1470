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

from export import cli, encoder
from export.index import index_folder
from export.search import __main__ as search
from export.search import answers as answering
from export.search.answers import answer, converse
from keras_fixedhead import retrieval


def write_lines(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


@pytest.fixture(params=["saved_model", "grpc", "rest"])
def source_words(request, base_path, server):
    """The flags of one of the three ways to the model."""
    if request.param == "saved_model":
        return ["--saved_model", str(base_path)]
    return ["--server", getattr(server, f"{request.param}_url")]


def run(*words):
    return cli.run(search.main, search.Arguments, [*map(str, words)])


HOSTILE = [
    "a " * 500_000,
    "w" * 1_000_000,
    "西西弗斯 سيزيف Сизиф",
    "😀" * 40,
    "a\x00b\x07\x1b[2J\u202e\ufeff",
    "[PAD] [MASK] [UNK]",
]
WRONG = {
    b'{"query": ""}': "'query' is blank",
    b'{"query": " \\n\\u3000"}': "'query' is blank",
    b'{"query": "\\u0001\\u200b"}': "'query' is blank",
    b'{"query": "a \\ud800"}': "lone surrogate U+D800 as character 3",
    b'{"query": "a \\udcff"}': "the byte 0xff as character 3",
    b'{"query": "\xff"}': "must be in UTF-8",
    b'{"query": 7}': "'query' must be a string",
    b'{"question": "a"}': "'text' must be a string",
    b'["query"]': "must be a JSON object",
    b'{"query": ': "must be JSON",
    b"[" * 100_000: "must be JSON",
}


def test_answers_a_file(made, tmp_path, source_words, oracle, capsys):
    queries = tmp_path / "queries.jsonl"
    lines = [
        b'{"query": "brown fox", "id": 7}',
        b'{"text": "read lines", "_id": "q"}',
        *(json.dumps({"query": query}).encode() for query in HOSTILE),
        b"  ",
        *WRONG,
    ]
    queries.write_bytes(b"\n".join(lines))
    output = tmp_path / "answers.jsonl"
    words = ["--queries", queries, "--output", output, "--k", "3"]
    words += ["--ranker", "encoder"]
    assert run("--index", made, *source_words, *words) == 1
    answers = [json.loads(line) for line in output.read_bytes().splitlines()]
    right = ["brown fox", "read lines", *HOSTILE]
    assert [answer["id"] for answer in answers[:3]] == [7, "q", None]
    for answered, query in zip(answers, right):
        assert answered["query"] == query
        # Texts are cut: the oracle need not read a megabyte.
        names, scores = oracle(query[:2000])
        hits = answered["hits"]
        assert [hit["rank"] for hit in hits] == [1, 2, 3]
        assert [hit["id"] for hit in hits] == names[:3]
        np.testing.assert_allclose(
            [hit["score"] for hit in hits], scores[:3], atol=1e-5
        )
        assert "text" not in hits[0]
    wrong = answers[len(right) :]
    assert len(wrong) == len(WRONG)
    for number, (answered, message) in enumerate(zip(wrong, WRONG.values())):
        where = f"queries.jsonl:{len(right) + number + 2}: "
        assert where in answered["error"]
        assert message in answered["error"]
        assert "hits" not in answered
    assert f"{len(WRONG)} queries have an error" in capsys.readouterr().out


def test_answers_many(made, opened, documents, tmp_path, monkeypatch):
    monkeypatch.setattr(answering, "_CHUNK", 3)
    queries, output = tmp_path / "queries.jsonl", tmp_path / "answers.jsonl"
    texts = [f"sum {'a' * n}" for n in range(7)]
    write_lines(queries, (json.dumps({"query": text}) for text in texts))
    searched = index_folder.load(made)

    def ask(texts):
        return answer(searched, opened, texts, 11, "encoder")

    assert (
        answering.answer_file(str(queries), output, ask, with_texts=True) == 0
    )
    answers = [json.loads(line) for line in output.read_bytes().splitlines()]
    assert [answer["query"] for answer in answers] == texts
    # As many hits as there are documents, with what they say.
    hits = {hit["id"]: hit["text"] for hit in answers[6]["hits"]}
    assert hits == documents


def test_an_unfinished_file_is_none(made, tmp_path):
    queries, output = tmp_path / "queries.jsonl", tmp_path / "answers.jsonl"
    write_lines(queries, ['{"query": "a"}'])
    output.write_text("before")

    def ask(texts):
        raise OSError("the server is away")

    with pytest.raises(OSError):
        answering.answer_file(str(queries), output, ask, with_texts=False)
    assert output.read_text() == "before"
    assert len(list(tmp_path.iterdir())) == 2


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


@pytest.fixture
def ranked(oracle, documents):
    """A function of ranker and query to documents, best first."""
    found = retrieval.bm25(list(documents.values()), ["dog file", "sum"], 5)
    bm25 = {
        query: [f"d{row + 1}" for row in rows if row >= 0]
        for query, rows in zip(["dog file", "sum"], found.documents)
    }

    def ranked(ranker, query):
        if ranker == "bm25":
            return bm25[query]
        lists = [oracle(query)[0], bm25[query]]
        if ranker == "encoder":
            return lists[0]
        gains = {
            name: sum(
                1 / (61 + each.index(name)) for each in lists if name in each
            )
            for name in documents
        }
        return sorted(gains, key=lambda name: -gains[name])

    return ranked


# No ranker is the fusion.
@pytest.mark.parametrize(
    "ranker",
    ["encoder", "bm25", pytest.param("fusion", marks=pytest.mark.slow), None],
)
def test_ranks_as_asked(
    made, server, tmp_path, capsys, monkeypatch, ranked, ranker
):
    """A query, a file and a conversation; BM25 without a model."""
    model = [] if ranker == "bm25" else ["--server", server.grpc_url]
    words = ["--index", made, *model, "--k", "2"]
    words += ["--ranker", ranker] if ranker else []
    wanted = ranked(ranker or "fusion", "dog file")[:2]

    def names_in(said):
        rows = [line for line in said.splitlines() if "│ d" in line]
        return [row.split("│")[3].strip() for row in rows]

    assert run(*words, "--query", "dog file") == 0
    said = capsys.readouterr().out
    assert f"ranked by {ranker or 'fusion'}" in said
    assert names_in(said) == wanted
    queries, output = tmp_path / "queries.jsonl", tmp_path / "answers.jsonl"
    write_lines(queries, ['{"query": "dog file"}', '{"query": "sum"}'])
    assert run(*words, "--queries", queries, "--output", output) == 0
    answers = [json.loads(line) for line in output.read_bytes().splitlines()]
    for answered in answers:
        assert [hit["id"] for hit in answered["hits"]] == ranked(
            ranker or "fusion", answered["query"]
        )[:2]
    capsys.readouterr()
    stdin = io.StringIO("dog file\n\x01\n")
    stdin.isatty = lambda: True
    monkeypatch.setattr(sys, "stdin", stdin)
    assert run(*words) == 0
    said = capsys.readouterr().out
    assert names_in(said) == wanted
    assert "error: the query is blank" in said


def test_no_word_in_common(made, capsys):
    words = ["--ranker", "bm25", "--query", "zebra [crossing]"]
    assert run("--index", made, *words) == 0
    assert "zebra [crossing]: no document found" in capsys.readouterr().out


def test_an_index_without_bm25(made, tmp_path, server, oracle, capsys):
    """Such as an earlier version made."""
    rewrite_manifest(made, tmp_path)
    manifest = json.loads((tmp_path / "index.json").read_text())
    del manifest["bm25"], manifest["bm25_bytes"]
    (tmp_path / "index.json").write_text(json.dumps(manifest))
    words = ["--index", tmp_path, "--query", "a dog"]
    words += ["--server", server.grpc_url]
    for ranker in ([], ["--ranker", "fusion"], ["--ranker", "bm25"]):
        assert run(*words, *ranker) == 1
        error = capsys.readouterr().err
        assert "holds no BM25" in error and "--ranker encoder" in error
        assert error.count("\n") == 1
    assert run(*words, "--ranker", "encoder") == 0
    assert oracle("a dog")[0][0] in capsys.readouterr().out


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("a \udcff", "`query` 'a ?' must be in UTF-8, but has the byte 0xff"),
        ("\ud800", "has the lone surrogate U+D800"),
        (" ", "`query` ' ' is blank"),
        ("\x01\xad", "`query` '\\x01\\xad' is blank"),
    ],
)
def test_queries_that_are_none(made, base_path, capsys, query, message):
    words = ["--saved_model", base_path, "--query", query]
    assert run("--index", made, *words) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_converses(made, opened, capsys, monkeypatch):
    searched, asked = index_folder.load(made), []

    def ask(queries):
        asked.extend(queries)
        if len(asked) == 2:
            raise OSError("the server is [away]")
        if len(asked) == 3:
            raise KeyboardInterrupt
        return answer(searched, opened, queries, 1, "encoder")

    typed = b"a fox\n\n  \nlost\nslow\nbad \xff\ndog\x01\n:q\nnever\n"
    stdin = io.TextIOWrapper(io.BytesIO(typed), errors="surrogateescape")
    monkeypatch.setattr(sys, "stdin", stdin)
    converse(ask, rich.console.Console())
    assert asked == ["a fox", "lost", "slow", "dog\x01"]
    printed = capsys.readouterr().out
    assert printed.count("rank") == 2
    assert "error: the server is [away]" in printed
    assert "the byte 0xff as character 5" in printed
    # The end of the input (Ctrl-D) ends it, too.
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    converse(ask, rich.console.Console())


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
        (b"0xff", b""),
        (b"query> ", b"\x04"),
    ):
        while wanted not in shown:
            shown += os.read(ours, 1024)
        shown = shown.partition(wanted)[2]
        os.write(ours, typed)
    assert process.wait(60) == 0
    os.close(ours)


def rewrite_manifest(made, folder, **model):
    """Copies the manifest with another model."""
    manifest = json.loads((made / "index.json").read_text())
    manifest["model"] |= model
    for path in made.iterdir():
        if path.name != "index.json":
            (folder / path.name).symlink_to(path)
    (folder / "index.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("model", "way", "message"),
    [
        ({"version": 2, "sha256": "0"}, "file", "tiny version 2, the other ti"),
        ({"sha256": "0123456789abcd"}, "file", "SHA-256 0123456789ab... and"),
        ({"version": 2}, "server", "one is tiny version 2, the other tiny v"),
    ],
)
def test_another_model(
    made, tmp_path, base_path, server, capsys, model, way, message
):
    rewrite_manifest(made, tmp_path, **model)
    words = {
        "file": ["--saved_model", base_path],
        "server": ["--server", server.grpc_url],
    }[way]
    assert run("--index", tmp_path, *words, "--query", "a") == 1
    assert message in capsys.readouterr().err


def test_another_model_of_the_same_name(made, opened, tmp_path):
    rewrite_manifest(made, tmp_path, sha256=None)
    searched = index_folder.load(tmp_path)
    searched.check(opened)

    def ask(batch, signature):
        return -opened.ask(batch, signature)

    other = encoder.Encoder(opened.model, ask, opened.signatures, 2, 1)
    with pytest.raises(ValueError, match="embeds its documents differently"):
        searched.check(other)


@pytest.mark.slow
def test_serves_itself(made, base_path, oracle, capsys):
    words = ["--serve", base_path, "--query", "a dog", "--ranker", "encoder"]
    assert run("--index", made, *words) == 0
    assert oracle("a dog")[0][0] in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--index", "MADE"], "There is no query"),
        (["--index", "MADE", "--query", "a"], "Pass one of `saved_model`"),
        (["--query", "a"], "`index` must be the folder"),
        (["--index", "no", "--query", "a", "--serve", "x"], "no complete ind"),
        (["--index", "MADE", "--query", "a", "--k", "0"], "`k` must be"),
        (["--index", "MADE", "--queries", "-"], "`output` belongs to"),
        (["--query", "a", "--queries", "-"], "one of `query`, `queries` and"),
        (["--collection", "BEIR", "--output", "-"], "`output` belongs to"),
        (
            ["--index", "MADE", "--query", "a", "--server", "nowhere"],
            "`server` must be",
        ),
        (
            ["--index", "MADE", "--query", "a", "--serve", "nowhere"],
            "did not start: export.serve: error: `model_base_path`",
        ),
        (
            ["--collection", "BEIR", "--output", "MADE", "--split", "no"],
            "no.tsv",
        ),
    ],
)
def test_command_line_errors(
    folder, made, base_path, capsys, monkeypatch, words, message
):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    words = [str({"MADE": made, "BEIR": folder}.get(w, w)) for w in words]
    if "--split" in words:
        words += ["--saved_model", str(base_path)]
    assert run(*words) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
