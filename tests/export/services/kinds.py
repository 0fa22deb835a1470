"""What holds for every kind of model that is served."""

import copy

import numpy as np
import pytest

from export import checks, client, load, local_server, publish, verify
from export.files import golden


def export(model, output, **options):
    """Exports a model's files; returns the version, checked and loaded here."""
    exports = []
    parameters = output / "batching_parameters.txt"
    parameters.write_text("allowed_batch_sizes: 1\nallowed_batch_sizes: 3\n")

    def check(folder, on_start):
        exports.append(checks.Exported(folder))
        return [
            verify.Result(name, *checks.run(name, exports[0]))
            for name in checks.CHECKS
        ]

    with pytest.MonkeyPatch.context() as patched:
        # A child process would load the model once more.
        patched.setattr(verify, "run_checks", check)
        results, published = publish.export(
            model, output, batching_parameters_file=parameters, **options
        )
    assert published, [result for result in results if not result.passed]
    exports[0].folder = published
    return exports[0]


class KindTests:
    """Tests of a kind.

    A subclass states how to make a model (`new`), how to export it, which
    faults in the golden answers must be found (signature, output and function
    of its array), and compares the answers that it is served (`check`).
    """

    options: dict = {}
    faults: tuple = ()

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls):
        return cls().new()

    @pytest.fixture(scope="class")
    @classmethod
    def preset(cls, model, tmp_path_factory):
        folder = tmp_path_factory.mktemp("preset")
        model.save_to_preset(str(folder))
        return folder

    @pytest.fixture(scope="class")
    @classmethod
    def exported(cls, preset, tmp_path_factory):
        exported = export(preset, tmp_path_factory.mktemp("k"), **cls.options)
        yield exported
        exported.session.close()

    @pytest.fixture(scope="class")
    @classmethod
    def ask(cls, exported):
        """A function of inputs and a signature to C++'s answers."""

        def ask(inputs, signature="serving_default"):
            arrays = {
                name: np.array([text.encode() for text in x], object)
                if isinstance(x, list)
                else x
                for name, x in inputs.items()
            }
            return exported.session.run(arrays, signature)

        return ask

    def test_equals_the_keras_model(self, model, ask):
        self.check(model, ask)

    @pytest.mark.slow
    @pytest.mark.parametrize("protocol", ["grpc_url", "rest_url"])
    def test_through_a_server(self, model, exported, protocol):
        with (
            local_server.running("tiny", exported.folder.parent) as server,
            client.connect(getattr(server, protocol), "tiny") as connection,
        ):
            self.check(model, connection.predict)

    def test_wrong_answers_are_found(self, exported):
        for signature, output, fault in self.faults:
            other = copy.copy(exported)
            other.golden = golden.load(exported.folder)
            outputs = other.golden[signature].outputs
            outputs[output] = fault(outputs[output])
            passed, detail = checks.run("golden answers", other)
            assert not passed
            assert detail.startswith(f"{signature}: {output} is")

    @pytest.mark.slow
    @pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
    def test_fewer_bits(self, preset, tmp_path, dtype):
        described = export(preset, tmp_path, dtype=dtype).card
        assert described["dtype"] == dtype
        assert 0.99 < described["least_cosine_to_float32"] < 1

    @pytest.mark.parametrize("suffix", ["", ".keras"])
    def test_from_files(self, model, preset, tmp_path, suffix):
        """A preset or a `.keras` file; the task, or its encoder alone."""
        source = preset
        if suffix:
            source = tmp_path / "task.keras"
            model.save(source)
        service = load.load(source, **self.options)
        assert type(service.model) is type(model)
        assert service.described.keys() == self.described
        with pytest.raises(ValueError, match="for a FixedHeadTextEmbedder, re"):
            load.load(source, embedding_dim=5)
        encoder = load.load(source, raw_encoder=True)
        assert encoder.model.name == model.backbone.name
        assert encoder.preprocessor.sequence_length == 37
