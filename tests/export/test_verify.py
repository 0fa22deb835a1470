"""The gate: green on a real export, red by name on each planted fault."""

import os
import pathlib
import shutil
import tempfile

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text as tf_text

from export import checks, cli, publish, services, verify
from export.checks.exported import Exported
from export.files import card, digests, golden
from tests.export import tiny


@pytest.fixture(scope="module")
def parts(embedder):
    """What `write` takes for a right export, one signature alone."""
    name = "serving_default"
    service = services.of(embedder, embedder.preprocessor)
    requests = services.warmup_requests(service, ["open the file"], [1, 3])
    return {
        "module": publish.Weights(embedder.weights),
        "functions": {name: services.signatures(service)[name]},
        "cases": {name: services.golden_cases(service)[name]},
        "requests": [
            r for r in requests if r.model_spec.signature_name == name
        ],
        "description": card.describe(service, "preset"),
    }


def failures(folder, parts, **faults):
    """Writes an export with faults; returns its failed checks by name."""
    publish.write(folder, **{**parts, **faults})
    return {
        result.name: result.detail
        for result in verify.run_checks(folder)
        if not result.passed
    }


def static_failures(folder, parts, **faults):
    """The same for the checks that run nothing, without a child process."""
    publish.write(folder, **{**parts, **faults})
    exported = Exported(folder)
    results = {name: checks.run(name, exported) for name in checks.STATIC}
    return {
        name: detail for name, (passed, detail) in results.items() if not passed
    }


def serve(body, ensured=True):
    """Makes the only signature, of a function from texts to embeddings.

    Unless the shape of texts is ensured, a scalar gets as far as `body`.
    """

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")])
    def answer(text):
        if ensured:
            text = tf.ensure_shape(text, [None])
        return {"embedding": body(text)}

    return {"serving_default": answer}


def embed(embedder, text):
    inputs = embedder.preprocessor.pad_to_longest(text)
    return embedder.embed_packed(inputs)


def test_tracked_model_fails_to_load(tmp_path, parts, embedder):
    module = tf.Module()
    module.model = embedder
    failed = failures(tmp_path, parts, module=module)
    assert "Could not find variable" in failed["load"]
    assert failed["golden answers"] == "not run: the model does not load"


def test_doubled_weights(tmp_path, parts, embedder):
    module = publish.Weights(embedder.weights)
    # Four bytes of parameter each, enough of them to be above the overhead.
    module.copy = [tf.Variable(tf.ones([9973], tf.float32))]
    failed = static_failures(tmp_path, parts, module=module)
    assert failed.keys() == {"card", "weights stored once"}


def test_open_shape_is_a_named_crash(tmp_path, parts, embedder, monkeypatch):
    tokenizer = tf_text.FastWordpieceTokenizer(tiny.VOCABULARY)

    def body(text):
        # The op of a tokenizer that nothing keeps a scalar from.
        number = tf.size(tokenizer.tokenize(text).flat_values)
        return embed(embedder, text) + 0.0 * tf.cast(number, tf.float32)

    names = ("load", "scalar text", "empty text")
    chosen = {name: checks.CHECKS[name] for name in names}
    monkeypatch.setattr(checks, "CHECKS", chosen)
    failed = failures(tmp_path, parts, functions=serve(body, ensured=False))
    assert failed.keys() == {"scalar text"}
    assert failed["scalar text"].startswith("crashed the process (SIG")


@pytest.mark.slow
def test_other_vocabulary(tmp_path, parts, embedder):
    swapped = list(tiny.VOCABULARY)
    # Two that the golden texts of old exports did not have.
    first, second = map(swapped.index, ("##q", "##x"))
    swapped[first], swapped[second] = swapped[second], swapped[first]
    other = tiny.new_embedder(swapped)
    functions = serve(lambda text: embed(other, text), ensured=False)
    module = publish.Weights(other.weights)
    failed = failures(tmp_path, parts, functions=functions, module=module)
    assert failed.keys() == {"vocabulary", "golden answers"}


@pytest.mark.parametrize(
    "wrong",
    [
        lambda size: size > 16,
        pytest.param(lambda size: size % 2 == 1, marks=pytest.mark.slow),
    ],
)
def test_a_batch_size_with_wrong_answers(tmp_path, parts, embedder, wrong):
    def body(text):
        shift = tf.where(wrong(tf.size(text)), 1e-3, 0.0)
        return embed(embedder, text) + shift

    failed = failures(tmp_path, parts, functions=serve(body))
    assert "in a batch of" in failed["golden answers"]
    assert failed.keys() == {"golden answers"}


@pytest.mark.slow
def test_not_a_number(tmp_path, parts, embedder):
    def body(text):
        odd = tf.strings.regex_full_match(text, "(?s).*éq.*")
        return tf.where(odd[:, None], np.nan, embed(embedder, text))

    failed = failures(tmp_path, parts, functions=serve(body))
    assert failed.keys() == {"golden answers"}
    assert "embedding is not finite" in failed["golden answers"]


def test_denied_ops_never_run(tmp_path, parts, embedder):
    written = tmp_path / "written"

    def body(text):
        with tf.control_dependencies([tf.io.write_file(str(written), "x")]):
            return embed(embedder, text)

    failed = failures(tmp_path / "1", parts, functions=serve(body))
    assert failed["load"].startswith("not loaded: a signature runs WriteFile")
    assert failed["golden answers"].startswith("not run")
    assert not written.exists()


@pytest.mark.parametrize(
    ("check", "message", "change"),
    [
        ("signatures", "DT_HALF", lambda x: tf.cast(x, tf.float16)),
        ("signatures", "no open first dimension", lambda x: tf.zeros([1, 13])),
        (
            "xla",
            "must be compiled by XLA",
            lambda x: tf.function(lambda x: x * 1.0, jit_compile=True)(x),
        ),
        (
            "ops",
            "PyFunc",
            lambda x: tf.numpy_function(lambda x: x, [x], tf.float32),
        ),
    ],
)
def test_what_a_graph_must_not_have(
    tmp_path, parts, embedder, check, message, change
):
    functions = serve(lambda text: change(embed(embedder, text)))
    failed = static_failures(tmp_path, parts, functions=functions)
    assert message in failed[check]


@pytest.fixture
def published(base_path, tmp_path):
    return shutil.copytree(base_path / "3", tmp_path / "3")


def test_an_export_from_before_there_were_manifests(published):
    described = card.load(published)
    for name in (
        *("saved_model_sha256", "golden_sha256", "weights_sha256"),
        *("fingerprint_sha256", "warmup_sha256", "batch_sizes"),
    ):
        del described[name]
    card.save(published, described)
    with np.load(published / golden.FILE) as stored:
        arrays = {
            name: array
            for name, array in stored.items()
            if name != "card_sha256" and not name.endswith("/decided")
        }
    np.savez_compressed(published / golden.FILE, **arrays)
    assert not checks.run("manifest", Exported(published))[0]
    (published / digests.MANIFEST).unlink()
    exported = Exported(published)
    for name in (*checks.STATIC, "weights", "golden answers", "warm-up"):
        passed, detail = checks.run(name, exported)
        assert passed, detail
        if name in ("manifest", "graph", "card", "weights"):
            assert detail.startswith("exported before there were")


def test_private_umask(tmp_path, parts):
    before = os.umask(0o077)
    try:
        publish.make_readable_folder(tmp_path / "a" / "tiny")
        folder = pathlib.Path(tempfile.mkdtemp(dir=tmp_path / "a" / "tiny"))
        publish.write(folder, **parts)
    finally:
        os.umask(before)
    assert checks.run("permissions", Exported(folder))[0]
    for path in (folder.parents[1], folder.parent, folder):
        assert path.stat().st_mode & 0o005 == 0o005


def test_command_line(published, capfd, monkeypatch):
    (published / "saved_model.pb").write_bytes(b"not a SavedModel")
    assert cli.run(verify.main, verify.Arguments, [str(published)]) == 1
    printed = capfd.readouterr().out
    assert all(name in printed for name in checks.CHECKS)
    assert "not run" in printed
    passed = [verify.Result("load", True, "as it should")]
    monkeypatch.setattr(verify, "run_checks", lambda *_: passed)
    assert cli.run(verify.main, verify.Arguments, [str(published)]) == 0
    assert "failed" not in capfd.readouterr().out
    missing = str(published / "nothing")
    assert cli.run(verify.main, verify.Arguments, [missing]) == 1
    assert capfd.readouterr().err.startswith(
        "export.verify: error: `folder` is not a folder"
    )
