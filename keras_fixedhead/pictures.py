"""Pictures: figures of Matplotlib, an optional extra, written whole or not."""

import io
import pathlib


def new_figure(width, height):
    """An empty figure.

    Args:
        width: float, inches.
        height: float, inches.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ModuleNotFoundError: if Matplotlib is not installed; says how to.
    """
    try:
        import matplotlib.figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Pictures need Matplotlib: pip install 'keras_fixedhead[pictures]'"
        ) from error
    return matplotlib.figure.Figure((width, height), layout="constrained")


def save_figure(figure, output):
    """Writes a picture, whole or not at all.

    Args:
        figure: a `matplotlib.figure.Figure`.
        output: path of the picture; its ending names the format.

    Raises:
        ValueError: if the ending names no format.
        OSError: if it cannot be written.
    """
    output = pathlib.Path(output)
    partial = output.with_name(f".partial.{output.name}")
    try:
        figure.savefig(partial, dpi=120)
        partial.replace(output)
    finally:
        partial.unlink(missing_ok=True)


def encode_png(figure):
    """A picture as the bytes of a PNG, and its width and height, pixels."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=80)
    width, height = (figure.get_size_inches() * 80).astype(int)
    return buffer.getvalue(), int(width), int(height)
