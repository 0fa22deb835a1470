"""What the attention heads of a live model do."""

from keras_fixedhead.diagnostics.picture import draw_attention_report
from keras_fixedhead.diagnostics.probe import AttentionProbe, attention_report
from keras_fixedhead.diagnostics.report import (
    AttentionReport,
    HeadReport,
    LayerReport,
)
from keras_fixedhead.diagnostics.tensorboard import (
    AttentionReportCallback,
    AttentionSummaries,
)

__all__ = [
    "AttentionProbe",
    "AttentionReport",
    "AttentionReportCallback",
    "AttentionSummaries",
    "HeadReport",
    "LayerReport",
    "attention_report",
    "draw_attention_report",
]
