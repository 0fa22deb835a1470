"""The gate: green on a real export, red by name on each planted fault."""

import copy
import os
import pathlib
import re
import shutil
import tempfile
import types

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text as tf_text

from export import checks, cli, files, messages, publish, services, verify
from export.files import card, golden, warmup
from tests.export import tiny

DATA = "variables/variables.data-00000-of-00001"


@pytest.fixture
def folder(base_path, tmp_path):
    """A copy of a sound export, to plant a fault in."""
    return shutil.copytree(base_path / "3", tmp_path / "3")


def found_by(check, exported):
    """What a check finds wrong."""
    passed, detail = checks.run(check, exported)
    assert not passed
    return detail


def fails(check, folder):
    """Returns what a check finds under a manifest written again."""
    modes = {path: path.stat().st_mode for path in folder.rglob("*")}
    files.write_manifest(folder)
    for path, mode in modes.items():
        path.chmod(mode)
    exported = checks.Exported(folder)
    assert checks.run("manifest", exported)[0]
    return found_by(check, exported)


def truncate(path):
    os.truncate(path, path.stat().st_size * 2 // 3)


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        (lambda f: truncate(f / DATA), f"{DATA} has changed"),
        (lambda f: (f / golden.FILE).unlink(), f"{golden.FILE} is missing"),
        (
            lambda f: (f / "saved_model.pbtxt").write_text(""),
            "saved_model.pbtxt is not in the manifest",
        ),
        (
            lambda f: (f / files.MANIFEST).unlink(),
            "FileNotFoundError: .*manifest.json",
        ),
    ],
)
def test_a_changed_file(folder, change, detail):
    assert checks.run("manifest", checks.Exported(folder))[0]
    change(folder)
    assert re.search(detail, found_by("manifest", checks.Exported(folder)))


@pytest.mark.parametrize(
    ("name", "mode"), [(DATA, 0o600), ("variables", 0o700)]
)
def test_a_private_file(folder, name, mode):
    (folder / name).chmod(mode)
    assert "not all may read it" in fails("permissions", folder)


def edit_graph(folder, edit):
    path = folder / "saved_model.pb"
    saved = messages.saved_model_pb2.SavedModel.FromString(path.read_bytes())
    edit(saved.meta_graphs[0])
    path.write_bytes(saved.SerializeToString())


def function_of(graph):
    """The function of a signature."""
    functions = graph.graph_def.library.function
    return next(f for f in functions if "signature_wrapper" in f.signature.name)


def add(op):
    return lambda graph: function_of(graph).node_def.add(name="added", op=op)


def compile_function(graph):
    function_of(graph).attr["_XlaMustCompile"].b = True


@pytest.mark.parametrize(
    ("edit", "detail", "failing"),
    [
        # What acts outside never runs.
        *(
            (add(op), f"the graph has {op}: ", ["ops", "load"])
            for op in ("WriteFile", "ReadFile", "EagerPyFunc")
        ),
        (add("AddonsTanh"), "TF Serving lacks the ops AddonsTanh", ["ops"]),
        (compile_function, "must be compiled by XLA", ["ops"]),
        (
            lambda graph: graph.signature_def.pop("query"),
            "golden answers for",
            ["load"],
        ),
    ],
)
def test_a_wrong_graph(folder, edit, detail, failing):
    edit_graph(folder, edit)
    for check in failing:
        assert detail in fails(check, folder)


def edit_weights(folder, edit):
    """Writes a sound checkpoint of other weights."""
    prefix = str(folder / "variables" / "variables")
    reader = tf.train.load_checkpoint(prefix)
    tensors = {
        name: np.array(reader.get_tensor(name))
        for name in sorted(reader.get_variable_to_shape_map())
    }
    edit(tensors)
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=list(tensors.values()),
    )


def test_weights_stored_twice(folder):
    more = {"more": np.ones([9973], "float32")}
    edit_weights(folder, lambda tensors: tensors.update(more))
    assert "bytes of variables for" in fails("weights stored once", folder)


def test_swapped_weights(folder):
    def swap(tensors):
        # The embeddings of tokens, sizes as in `tiny`.
        table = next(x for x in tensors.values() if x.shape == (89, 13))
        table[[70, 71]] = table[[71, 70]]

    edit_weights(folder, swap)
    detail = fails("golden answers", folder)
    assert "from the Keras model's, more than 1e-05, in a batch of" in detail


@pytest.fixture(scope="module")
def loaded(base_path):
    exported = checks.Exported(base_path / "3")
    assert checks.run("load", exported)[0]
    yield exported
    exported.session.close()


@pytest.fixture
def exported(loaded):
    """A loaded export whose card, golden answers and `ask` may be changed."""
    changed = copy.copy(loaded)
    changed.card = loaded.card
    changed.golden = golden.load(loaded.folder)
    return changed


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        (lambda x: x + 1e-3, "embedding is 1.0e-03 from the Keras model's"),
        (lambda x: x.astype(np.float64), "of the Keras model .*float64"),
        (lambda x: x[:, :-1], r"\(1, 13\)\), of the Keras model .*\(1, 12\)\)"),
        (None, r"^query answers \['embedding'\], the Keras model \[\]"),
    ],
)
def test_wrong_answers(exported, change, detail):
    outputs = exported.golden["query"].outputs
    embedding = outputs.pop("embedding")
    if change:
        outputs["embedding"] = change(embedding)
    assert re.search(detail, found_by("golden answers", exported))


def test_answers_that_are_not_numbers(exported):
    def run(inputs, signature):
        return {"embedding": np.full([1, 13], np.nan)}

    signatures = exported.session.signatures
    exported.session = types.SimpleNamespace(run=run, signatures=signatures)
    assert found_by("load", exported).endswith("embedding is not finite")


@pytest.mark.parametrize(
    ("signature", "count", "detail"),
    [
        ("query", 33, "request 0 has more than 32 rows"),
        ("no", 1, "KeyError: 'no'"),
        ("query", None, "0 requests; from 1 to 1000 are allowed"),
    ],
)
def test_a_wrong_warmup(exported, tmp_path, signature, count, detail):
    exported.folder = tmp_path
    if count is not None:
        texts = {"text": np.array([b"a"] * count, object)}
        warmup.write(tmp_path, [warmup.request(signature, texts)])
    assert checks.run("warm-up", exported) == (False, detail)


@pytest.mark.parametrize("check", ["empty batch", "wrong texts", "wrong ids"])
def test_what_is_answered_too_readily(exported, check):
    exported.ask = lambda signature, inputs: {"embedding": np.ones([1, 13])}
    assert not checks.run(check, exported)[0]


def test_an_answer_that_depends_on_the_texts_beside(exported):
    def ask(signature, inputs):
        size = len(inputs["text"])
        return {"embedding": np.ones([size, 13]) / size}

    exported.ask = ask
    detail = found_by("odd texts", exported)
    assert detail.endswith("embedding depends on the texts beside")


@pytest.fixture(scope="module")
def parts(embedder):
    """What `write` takes for a right export, one signature alone."""
    name = "serving_default"
    service = services.of(embedder, embedder.preprocessor)
    requests = services.warmup_requests(service, ["open the file"], [1, 3])
    return {
        "weights": embedder.weights,
        "functions": {name: services.signatures(service)[name]},
        "cases": {name: services.golden_cases(service)[name]},
        "requests": [
            r for r in requests if r.model_spec.signature_name == name
        ],
        "description": {
            **card.describe(service, "preset"),
            "batch_sizes": [1, 3],
        },
    }


def test_a_batch_size_with_wrong_answers_and_a_crash(
    tmp_path, parts, embedder, capfd
):
    tokenizer = tf_text.FastWordpieceTokenizer(tiny.VOCABULARY)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")])
    def answer(text):
        # The op of a tokenizer that nothing keeps a scalar from.
        number = tf.size(tokenizer.tokenize(text).flat_values)
        inputs = embedder.preprocessor.pad_to_longest(text)
        shift = tf.where(tf.size(text) > 16, 1e-3, 0.0)
        shift += 0.0 * tf.cast(number, tf.float32)
        return {"embedding": embedder.embed_packed(inputs) + shift}

    functions = {"serving_default": answer}
    publish.write(tmp_path, **{**parts, "functions": functions})
    results = verify.run_checks(tmp_path)
    assert [result.name for result in results] == list(checks.CHECKS)
    wrong = {r.name: r.detail for r in results if not r.passed}
    assert wrong.keys() == {"golden answers", "wrong texts", "wrong ids"}
    assert "in a batch of 31" in wrong["golden answers"]
    assert wrong["wrong texts"].startswith("crashed the process (SIG")
    assert wrong["wrong ids"] == "not run: wrong texts failed"
    verify.print_table(results, tmp_path)
    printed = capfd.readouterr().out
    assert all(name in printed for name in checks.CHECKS)


def test_private_umask(tmp_path):
    before = os.umask(0o077)
    try:
        publish.make_readable_folder(tmp_path / "a" / "tiny")
        folder = pathlib.Path(tempfile.mkdtemp(dir=tmp_path / "a" / "tiny"))
        (folder / files.MANIFEST).parent.mkdir()
        files.write_manifest(folder)
    finally:
        os.umask(before)
    assert checks.run("permissions", checks.Exported(folder))[0]
    for path in (folder.parents[1], folder.parent, folder):
        assert path.stat().st_mode & 0o005 == 0o005


def test_command_line(folder, capfd, monkeypatch):
    (folder / "saved_model.pb").write_bytes(b"not a SavedModel")
    assert cli.run(verify.main, verify.Arguments, [str(folder)]) == 1
    assert "not run" in capfd.readouterr().out
    passed = [verify.Result("load", True, "as it should")]
    monkeypatch.setattr(verify, "run_checks", lambda *_: passed)
    assert cli.run(verify.main, verify.Arguments, [str(folder)]) == 0
    assert "failed" not in capfd.readouterr().out
    missing = str(folder / "nothing")
    assert cli.run(verify.main, verify.Arguments, [missing]) == 1
    assert capfd.readouterr().err.startswith(
        "export.verify: error: `folder` is not a folder"
    )
