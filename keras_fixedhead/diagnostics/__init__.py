"""What the attention heads of a live model do."""

from keras_fixedhead.command import public_names

__getattr__, __all__ = public_names(
    __name__,
    probe="attention_report",
    report="AttentionReport HeadReport LayerReport draw_attention_report",
    tensorboard="AttentionReportCallback AttentionSummaries",
)
