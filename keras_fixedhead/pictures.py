"""Pictures, drawn with Matplotlib, which is an optional extra."""

import io
import pathlib

from keras_fixedhead.files import replaced


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


def check_picture(output):
    """Raises unless a picture can be written there, before long work.

    Args:
        output: path of the picture; its ending names the format.

    Raises:
        ModuleNotFoundError: if Matplotlib is not installed; says how to.
        ValueError: if the ending names no format, or there is no such folder.
    """
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


def save_figure(figure, output):
    """Writes a picture, whole or not at all.

    Args:
        figure: a `matplotlib.figure.Figure`.
        output: path of the picture; its ending names the format.

    Raises:
        ValueError: see `check_picture`.
        OSError: if it cannot be written.
    """
    output = pathlib.Path(output)
    check_picture(output)
    with replaced(output) as partial:
        figure.savefig(partial, dpi=120, format=output.suffix[1:].lower())


def encode_png(figure):
    """A picture as the bytes of a PNG, and its width and height in pixels."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=80)
    width, height = (figure.get_size_inches() * 80).astype(int)
    return buffer.getvalue(), int(width), int(height)
