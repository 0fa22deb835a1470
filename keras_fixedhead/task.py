"""What the tasks share.

Shape letters: B batch, T sequence length.
"""

from keras_fixedhead.backbone import (
    FixedHeadBackbone,
    refuse_unknown_arguments,
)


class FixedHeadTask:
    """Mixin of the tasks with a `FixedHeadBackbone`.

    A task's `..._packed` method returns what calling the model returns, but
    computes real tokens only; see `FixedHeadBackbone.encode_packed` for where
    it runs, and for its arguments `inputs`, `training` and `fixed_size`.
    """

    backbone_cls = FixedHeadBackbone

    def __init__(self, backbone, preprocessor, inputs, outputs, **kwargs):
        refuse_unknown_arguments(self, kwargs)
        self.backbone = backbone
        self.preprocessor = preprocessor
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)

    @classmethod
    def from_preset(cls, preset, *args, **kwargs):
        model = super().from_preset(preset, *args, **kwargs)
        longest = model.backbone.max_sequence_length
        preprocessor = model.preprocessor
        # Another task's preset has no preprocessor for this task, and the
        # default length may be too long.
        if preprocessor is not None and preprocessor.sequence_length > longest:
            model._limit_sequence_length(longest)
        return model

    def _limit_sequence_length(self, longest):
        self.preprocessor.sequence_length = longest
