"""Pictures, drawn with Matplotlib, which is an optional extra.

Texts, axes and backgrounds have the colours of Matplotlib's settings; with
`MATPLOTLIBRC=docs/dark.mplstyle` in the environment they are dark.
"""

import io
import os
import pathlib
import typing

from keras_fixedhead.files import replaced

if typing.TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

# Colour-blind readers can tell them apart (after Okabe & Ito 2008), and each
# has a contrast of 3 or more with white and with a dark background.
COLORS = ("#1f83d0", "#d55e00", "#009e73", "#c05f94")
GREY = "#808890"


def new_figure(width: float, height: float) -> "matplotlib.figure.Figure":
    try:
        import matplotlib.figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Pictures need Matplotlib: pip install 'keras_fixedhead[pictures]'"
        ) from error
    return matplotlib.figure.Figure((width, height), layout="constrained")


def use_plain_logs(
    axes: "matplotlib.axes.Axes", name: str = "x", base: int = 10
) -> None:
    """Makes the axis `name` logarithmic, with ticks such as 100 and not 10^2.

    Ticks are powers of the base; for 10 also two and five times a power.
    """
    from matplotlib.ticker import LogLocator

    getattr(axes, f"set_{name}scale")("log", base=base)
    axis = getattr(axes, f"{name}axis")
    subs = (1, 2, 5) if base == 10 else (1,)
    axis.set_major_locator(LogLocator(base, subs=subs))
    axis.set_major_formatter("{x:,g}")
    axes.minorticks_off()


def add_legend(figure: "matplotlib.figure.Figure", columns: int = 4) -> None:
    """Adds one legend for all axes, below them, with each label once."""
    entries: dict = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels()):
            entries.setdefault(label, handle)
    figure.legend(
        entries.values(),
        entries.keys(),
        loc="outside lower center",
        ncols=columns,
        frameon=False,
    )


def check_picture(output: str | os.PathLike) -> None:
    """Raises before long work if `save_figure` would fail."""
    output = pathlib.Path(output)
    formats = new_figure(1, 1).canvas.get_supported_filetypes()
    if output.suffix[1:].lower() not in formats:
        raise ValueError(
            f"`output` must end in one of {', '.join(sorted(formats))}. "
            f"Received: output={str(output)!r}"
        )
    if not output.parent.is_dir():
        raise ValueError(
            "`output` must be in a folder that exists. "
            f"Received: output={str(output)!r}"
        )


def save_figure(
    figure: "matplotlib.figure.Figure", output: str | os.PathLike
) -> None:
    """Writes a picture atomically; its file extension names the format."""
    output = pathlib.Path(output)
    check_picture(output)
    with replaced(output) as partial:
        figure.savefig(partial, dpi=120, format=output.suffix[1:].lower())


def encode_png(figure: "matplotlib.figure.Figure") -> tuple[bytes, int, int]:
    """A picture as the bytes of a PNG, and its width and height in pixels."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=80)
    width, height = (figure.get_size_inches() * 80).astype(int)
    return buffer.getvalue(), int(width), int(height)
