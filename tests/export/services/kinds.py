"""What holds for every kind of model that is served."""

import pytest

from export import load
from export.checks.exported import Exported
from export.files import card
from tests.export import serving


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
    def folder(cls, model, tmp_path_factory):
        folder = tmp_path_factory.mktemp("kind")
        return serving.export(model, folder, **cls.options)

    @pytest.fixture(scope="class")
    @classmethod
    def exported(cls, folder):
        return Exported(folder)

    @pytest.mark.slow
    @pytest.mark.parametrize("protocol", ["grpc_url", "rest_url"])
    def test_through_a_server(self, model, folder, protocol):
        with serving.by_server(folder, protocol) as ask:
            self.check(model, ask)

    def test_wrong_answers_are_found(self, exported):
        for signature, output, fault in self.faults:
            passed, detail = serving.compare_with_others(
                exported, signature, output, fault
            )
            assert not passed
            assert detail.startswith(f"{signature}: {output} is")

    @pytest.mark.slow
    @pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
    def test_fewer_bits(self, model, tmp_path, dtype):
        folder = serving.export(model, tmp_path, dtype=dtype)
        described = card.load(folder)
        assert described["dtype"] == dtype
        assert 0.99 < described["least_cosine_to_float32"] < 1

    @pytest.mark.parametrize("suffix", ["", ".keras"])
    @pytest.mark.filterwarnings(
        # KerasHub compiles a CausalLM when it is made.
        "ignore:`compile\\(\\)` was not called as part of model loading"
    )
    def test_from_files(self, model, tmp_path, suffix):
        """A preset or a `.keras` file; the task, or its encoder alone."""
        source = tmp_path / f"task{suffix}"
        if suffix:
            model.save(source)
        else:
            model.save_to_preset(str(source))
        service = load.load(source, **self.options)
        assert type(service.model) is type(model)
        assert service.described.keys() == self.described
        with pytest.raises(ValueError, match="for a FixedHeadTextEmbedder, re"):
            load.load(source, embedding_dim=5)
        encoder = load.load(source, raw_encoder=True)
        assert encoder.model.name == model.backbone.name
        assert encoder.preprocessor.sequence_length == 37
