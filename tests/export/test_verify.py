"""The gate: green on a real export, red by name on each planted fault."""

import shutil

import pytest
import tensorflow as tf
import tensorflow_text as tf_text

from export import (
    checks,
    cli,
    messages,
    publish,
    services,
    verify,
)
from export.files import card, warmup
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
    failed = {}
    for name, check in checks.STATIC.items():
        try:
            check(folder)
        except checks.Failure as failure:
            failed[name] = str(failure)
    return failed


def one_function(body, **options):
    """Makes a serving function of a body over texts."""
    spec = [tf.TensorSpec([None], tf.string, "text")]
    function = tf.function(body, input_signature=spec, **options)
    return {"serving_default": function}


def embed(embedder, text):
    inputs = embedder.preprocessor.pad_to_longest(text)
    return embedder.embed_packed(inputs)


def test_sound_parts_pass(tmp_path, parts):
    # Else the tests below would fail for a reason that is not theirs.
    assert failures(tmp_path, parts) == {}


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
    assert failed.keys() == {"weights stored once"}


def test_open_shape_is_a_named_crash(tmp_path, parts, embedder):
    tokenizer = tf_text.FastWordpieceTokenizer(tiny.VOCABULARY)

    def body(text):
        # The op of a tokenizer that nothing keeps a scalar from.
        number = tf.size(tokenizer.tokenize(text).flat_values)
        embedding = embed(embedder, text)
        return {"embedding": embedding + 0.0 * tf.cast(number, tf.float32)}

    failed = failures(tmp_path, parts, functions=one_function(body))
    assert failed["scalar text"].startswith("crashed the process (SIG")


@pytest.mark.slow
def test_other_vocabulary(tmp_path, parts, embedder):
    swapped = list(tiny.VOCABULARY)
    swapped[5], swapped[6] = swapped[6], swapped[5]
    other = tiny.new_embedder(swapped)
    functions = one_function(lambda text: {"embedding": embed(other, text)})
    module = publish.Weights(other.weights)
    failed = failures(tmp_path, parts, functions=functions, module=module)
    assert "golden answers" in failed


def test_half_precision_output(tmp_path, parts, embedder):
    def body(text):
        text = tf.ensure_shape(text, [None])
        return {"embedding": tf.cast(embed(embedder, text), tf.float16)}

    failed = static_failures(tmp_path, parts, functions=one_function(body))
    assert "DT_HALF" in failed["output types"]


def test_xla_function(tmp_path, parts, embedder):
    project = tf.function(lambda x: x * 1.0, jit_compile=True)

    def body(text):
        text = tf.ensure_shape(text, [None])
        return {"embedding": project(embed(embedder, text))}

    failed = static_failures(tmp_path, parts, functions=one_function(body))
    assert "must be compiled by XLA" in failed["xla"]


def test_python_op(tmp_path, parts, embedder):
    def body(text):
        text = tf.ensure_shape(text, [None])
        same = tf.numpy_function(lambda x: x, [text], tf.string)
        same.set_shape([None])
        return {"embedding": embed(embedder, same)}

    failed = static_failures(tmp_path, parts, functions=one_function(body))
    assert "PyFunc" in failed["ops"]


def test_unknown_op(tmp_path, parts):
    publish.write(tmp_path, **parts)
    file = tmp_path / "saved_model.pb"
    saved = messages.saved_model_pb2.SavedModel.FromString(file.read_bytes())
    functions = saved.meta_graphs[0].graph_def.library.function
    functions[0].node_def[0].op = "AddonsGelu"
    file.write_bytes(saved.SerializeToString())
    with pytest.raises(checks.Failure, match="the server has not: AddonsGelu"):
        checks.check_ops(tmp_path)


def test_closed_batch(tmp_path, parts, embedder):
    def body(text):
        return {"embedding": tf.zeros([1, 13])}

    failed = static_failures(tmp_path, parts, functions=one_function(body))
    assert "no open first dimension" in failed["signatures"]


@pytest.fixture
def published(base_path, tmp_path):
    return shutil.copytree(base_path / "3", tmp_path / "3")


def test_missing_warmup_file(published):
    (published / warmup.FILE).unlink()
    with pytest.raises(checks.Failure, match="tf_serving_warmup_requests"):
        checks.check_files(published)
    with pytest.raises(checks.Failure, match="^0 requests"):
        checks.check_warmup(published)


def test_command_line(published, capfd):
    assert cli.run(verify.main, verify.Arguments, [str(published)]) == 0
    printed = capfd.readouterr().out
    assert all(name in printed for name in checks.CHECKS)
    assert "failed" not in printed
    (published / "saved_model.pb").write_bytes(b"not a SavedModel")
    assert cli.run(verify.main, verify.Arguments, [str(published)]) == 1
    assert "not run" in capfd.readouterr().out
    missing = str(published / "nothing")
    assert cli.run(verify.main, verify.Arguments, [missing]) == 1
    assert capfd.readouterr().err.startswith(
        "export.verify: error: `folder` is not a folder"
    )
