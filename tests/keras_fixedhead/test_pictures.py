"""Pictures: colours that read on light and on dark pages, and plain axes."""

import pathlib

import matplotlib
import matplotlib.colors
import matplotlib.image
import numpy as np
import pytest

from keras_fixedhead import pictures

DARK = pathlib.Path(__file__).parents[2] / "docs" / "dark.mplstyle"


def luminance(color):
    """Relative luminance by WCAG 2."""
    rgb = np.array(matplotlib.colors.to_rgb(color))
    linear = np.where(
        rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4
    )
    return linear @ [0.2126, 0.7152, 0.0722]


def contrast(one, other):
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_colours_read_on_both_backgrounds():
    dark = matplotlib.rc_params_from_file(DARK, use_default_template=False)
    for color in (*pictures.COLORS, pictures.GREY):
        assert contrast(color, "white") >= 3
        assert contrast(color, dark["figure.facecolor"]) >= 3
    for name in ("text.color", "axes.labelcolor", "xtick.color", "ytick.color"):
        assert contrast(dark[name], dark["figure.facecolor"]) >= 7


@pytest.mark.parametrize("dark", [False, True])
def test_the_background_is_that_of_the_settings(tmp_path, dark):
    path = tmp_path / "picture.png"
    with matplotlib.rc_context(fname=DARK if dark else None):
        figure = pictures.new_figure(2, 2)
        figure.subplots().plot([1, 2])
        pictures.save_figure(figure, path)
        expected = "#1e2129" if dark else "white"
    pixels = matplotlib.image.imread(path)
    corner, middle = pixels[0, 0, :3], pixels[60, 200, :3]
    for found in (corner, middle):
        np.testing.assert_allclose(
            found, matplotlib.colors.to_rgb(expected), atol=1e-6
        )


def test_logarithms_have_plain_numbers():
    figure = pictures.new_figure(4, 4)
    axes = figure.subplots()
    axes.plot([90, 1200], [2, 8])
    pictures.use_plain_logs(axes)
    pictures.use_plain_logs(axes, "y", base=2)
    figure.draw_without_rendering()
    x, y = (
        {text.get_text() for text in axis.get_ticklabels()}
        for axis in (axes.xaxis, axes.yaxis)
    )
    assert {"100", "200", "500", "1,000"} <= x and {"2", "4", "8"} <= y


def test_one_legend_has_each_label_once():
    figure = pictures.new_figure(4, 4)
    for axes, label in zip(figure.subplots(1, 3), ("one", "two", "one")):
        axes.plot([1], label=label)
    pictures.add_legend(figure)
    [legend] = figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == ["one", "two"]
