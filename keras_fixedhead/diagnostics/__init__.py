"""What the attention heads of a live model do."""

from keras_fixedhead.command import public_names

__getattr__, __all__ = public_names(
    __name__,
    picture="draw_attention_report",
    probe="AttentionProbe attention_report",
    report="AttentionReport HeadReport LayerReport",
    tensorboard="AttentionReportCallback AttentionSummaries",
)
