"""The attention report as a picture: layers by heads."""

import numpy as np

from keras_fixedhead.pictures import new_figure, save_figure

_PANELS = (
    ("logit_effective_rank", "effective rank of the logits"),
    ("attention_effective_rank", "effective rank of the attention"),
    ("entropy", "entropy of the attention, nats"),
    ("condition_number", "condition number of the output, log10"),
)
_COLUMNS = 2
_CELL_INCHES = 0.32
_MARGIN_INCHES = 1.6


def draw_attention_report(report, output):
    """Draws four numbers of each head; small heads are marked with a cross.

    Args:
        report: an `AttentionReport`.
        output: path of the picture; its suffix selects the format.

    Raises:
        ModuleNotFoundError: if Matplotlib is not installed.
        ValueError: if the suffix of `output` is no format of Matplotlib's.
    """
    save_figure(attention_figure(report), output)


def attention_figure(report):
    """The picture as a `matplotlib.figure.Figure`."""
    layers = len(report.layers)
    heads = max(layer.num_heads for layer in report.layers)
    rows = -(-len(_PANELS) // _COLUMNS)
    figure = new_figure(
        _COLUMNS * max(_CELL_INCHES * heads + _MARGIN_INCHES, 4.5),
        rows * max(_CELL_INCHES * layers + _MARGIN_INCHES, 3.0),
    )
    figure.suptitle(report.summary, wrap=True)
    for axis, (name, title) in zip(
        figure.subplots(rows, _COLUMNS, squeeze=False).flat, _PANELS
    ):
        values = np.full((layers, heads), np.nan)
        for head in report.heads:
            values[head.layer, head.head] = getattr(head, name)
        if name == "condition_number":
            with np.errstate(invalid="ignore"):
                values = np.log10(np.where(np.isinf(values), np.nan, values))
        axis.set_title(title)
        axis.set_xlabel("head")
        axis.set_ylabel("layer")
        axis.locator_params(integer=True)
        axis.set_facecolor("0.85")  # no such head, or no full rank
        figure.colorbar(axis.imshow(values, aspect="auto"), ax=axis)
        small = [(x.head, x.layer) for x in report.heads if x.bottleneck]
        if 0 < len(small) < len(report.heads):
            axis.scatter(*zip(*small), marker="x", color="white", s=12)
    return figure
