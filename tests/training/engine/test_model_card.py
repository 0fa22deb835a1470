"""The model card of a preset; `task_tests.py` tests those of runs."""

import dataclasses
import pathlib
import re
import shutil

import pytest

from tests.training import tiny
from tests.training.task_tests import read_card
from training.convert.__main__ import main as convert
from training.engine.model_card import write_card
from training.engine.preset import preset_sha256

STORED = pathlib.Path(__file__).parents[2] / "stored" / "preset"


def test_converted(tmp_path):
    texts = tiny.write_texts(tmp_path / "texts.txt")
    flags = {"source": STORED, "output": tmp_path / "out", "texts": texts}
    words = [word for name, x in flags.items() for word in (f"--{name}", x)]
    assert convert([*map(str, words), "--num_heads", "5"]) == 0
    lines, _ = read_card(tmp_path / "out")
    assert any("from `preset` by `training.convert`" in line for line in lines)
    assert "- training data of `preset`: fill in" in lines
    assert "- texts: `texts.txt`" in lines
    assert {"- num_heads: 5", "- num_heads, texts: 43"} <= {*lines}
    bottleneck = "The heads are smaller than the sequence length of 29: a low-"
    assert any(line.startswith(bottleneck) for line in lines)
    # The code loads the preset.
    [code] = re.findall("```python\n(.*?)```", "\n".join(lines), re.DOTALL)
    names = {}
    exec(code.replace("PRESET", str(tmp_path / "out")), names)
    assert names["model"].backbone.num_heads == 5


@dataclasses.dataclass
class Flags:
    data: pathlib.Path
    validation: tuple[str, ...]
    source: str = "hub-owner/hub-name"


@pytest.mark.parametrize(
    ("manifest", "prepared"),
    [
        (
            '{"vocabulary_sha256": "", "arguments": '
            '{"source": ["/a/secret/b.txt", "tfds:c/d"]}}',
            True,
        ),
        ('{"arguments": [1]}', False),
        ("[1]", False),
        ("no JSON", False),
    ],
)
def test_names(manifest, prepared, tmp_path):
    preset = shutil.copytree(STORED, tmp_path / "preset")
    before = preset_sha256(preset, "init")
    (tmp_path / "manifest.json").write_text(manifest)
    write_card(preset, Flags(tmp_path, ("tfds:glue/mnli", str(preset))))
    lines, _ = read_card(preset)
    assert f"- data: `{tmp_path.name}`" in lines
    assert "- validation: `tfds:glue/mnli`, `preset`" in lines
    assert "- source: `hub-owner/hub-name`" in lines
    line = "- source of the data: `b.txt`, `tfds:c/d`"
    assert (line in lines) == prepared
    assert preset_sha256(preset, "init") == before
