"""The models that the contract suite asks, and the file that serves them.

`python -m tests.contract.models DIR --prefix /models` writes them for a model
server that sees DIR as `/models`.
"""

import dataclasses
import pathlib
import sys

from google.protobuf import text_format

from export import cli, messages

CONFIG = "models.config"
# Another weight in each version, so that an answer tells which one gave it.
HALF_PLUS = {1: 2.0, 2: 3.0}
LABELS = {"stable": 1, "canary": 2}


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Write the models of the contract suite and their models.config."""

    folder: cli.Positional[pathlib.Path]
    """Where to write; made if it is missing."""

    prefix: pathlib.Path | None = None
    """The path under which the server sees the folder; its own by default."""


def write_half_plus(folder, offset):
    """Writes `y = x / 2 + offset`, float32 of any shape, as a SavedModel."""
    import tensorflow as tf

    class HalfPlus(tf.Module):
        def __init__(self):
            self.offset = tf.Variable(offset)

        @tf.function(input_signature=[tf.TensorSpec(None, tf.float32, "x")])
        def answer(self, x):
            return {"y": x / 2 + self.offset}

    module = HalfPlus()
    tf.saved_model.save(
        module, str(folder), signatures={"serving_default": module.answer}
    )


def _write_kinds(folder):
    """Writes signatures for the kinds of values and shapes there are.

    Each answers what it is asked, or what its name says.
    """
    import tensorflow as tf

    def limit(x):
        with tf.control_dependencies([tf.debugging.assert_less(x, 10.0)]):
            return {"y": tf.identity(x)}

    def answer_several(flags, floats, ints, texts):
        return {
            "not_flags": ~flags,
            "floats_out": floats,
            "ints_out": ints,
            "texts_out": texts,
            "texts_bytes": texts,
        }

    several = {
        "flags": ([None], tf.bool),
        "floats": ([None, None], tf.float32),
        "ints": ([None, None], tf.int32),
        "texts": ([None], tf.string),
    }
    batch = {"x": ([None], tf.float32)}
    kinds = {
        "several": (several, answer_several),
        "text": (
            {"text": (None, tf.string)},
            lambda text: {"text_bytes": text},
        ),
        "double": ({"x": (None, tf.float64)}, lambda x: {"y": x}),
        "long": ({"x": (None, tf.int64)}, lambda x: {"y": x}),
        "byte": ({"x": (None, tf.uint8)}, lambda x: {"y": x}),
        "half": ({"x": (None, tf.half)}, lambda x: {"y": x}),
        "total": (batch, lambda x: {"y": tf.reduce_sum(x)}),
        "unlike": (
            batch,
            lambda x: {"long": tf.concat([x, x], 0), "short": x},
        ),
        "none": (batch, lambda x: {"y": x[:0]}),
        "as_half": (batch, lambda x: {"y": tf.cast(x, tf.half)}),
        "limited": (batch, limit),
    }
    signatures = {}
    for name, (inputs, function) in kinds.items():
        specs = [tf.TensorSpec(*inputs[key], key) for key in inputs]
        signatures[name] = tf.function(function, input_signature=specs)
    tf.saved_model.save(tf.Module(), str(folder), signatures)


def write(folder, prefix=None):
    """Writes the models `half_plus` (two versions with labels) and `kinds`;
    returns the path of their `ModelServerConfig`."""
    prefix = prefix or folder.resolve()
    for number, offset in HALF_PLUS.items():
        write_half_plus(folder / "half_plus" / str(number), offset)
    _write_kinds(folder / "kinds" / "1")
    config = messages.model_server_config_pb2.ModelServerConfig()
    for name in ("half_plus", "kinds"):
        config.model_config_list.config.add(
            name=name, base_path=f"{prefix}/{name}", model_platform="tensorflow"
        )
    half_plus = config.model_config_list.config[0]
    half_plus.model_version_policy.specific.versions.extend(HALF_PLUS)
    half_plus.version_labels.update(LABELS)
    path = folder / CONFIG
    path.write_text(text_format.MessageToString(config), encoding="utf-8")
    return path


def main(arguments):
    print(write(arguments.folder, arguments.prefix))
    return 0


if __name__ == "__main__":
    sys.exit(cli.run(main, Arguments))
