"""Pictures, drawn with Matplotlib, which is an optional extra."""

import io
import os
import pathlib
import typing

from keras_fixedhead.files import replaced

if typing.TYPE_CHECKING:
    import matplotlib.figure


def new_figure(width: float, height: float) -> "matplotlib.figure.Figure":
    try:
        import matplotlib.figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Pictures need Matplotlib: pip install 'keras_fixedhead[pictures]'"
        ) from error
    return matplotlib.figure.Figure((width, height), layout="constrained")


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
