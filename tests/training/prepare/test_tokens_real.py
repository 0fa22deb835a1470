"""Token ids of real lines, beside those of Hugging Face's BERT tokenizer."""

import pathlib
import random

import pytest
import tensorflow as tf
import tokenizers

from keras_fixedhead import FixedHeadTokenizer

DATA = pathlib.Path(__file__).parents[4] / "shared" / "data"
NUM_LINES = 100_000


def real_lines():
    """Lines of novels, of an encyclopedia and of news."""
    for files in ("eltec/text/*.txt", "lm1b/*.tokens", "wikitext2/*.txt"):
        for path in sorted(DATA.glob(files)):
            yield from path.read_text("utf-8").split("\n")


@pytest.mark.slow
@pytest.mark.skipif(not DATA.exists(), reason=f"wants texts in {DATA}")
def test_ids_equal_berts():
    lines = [line.strip() for line in real_lines()]
    lines = random.Random(0).sample([line for line in lines if line], NUM_LINES)
    path = str(DATA / "vocab" / "vocab.txt")
    theirs = tokenizers.BertWordPieceTokenizer(path)
    ours = FixedHeadTokenizer(path)
    different = []
    for start in range(0, NUM_LINES, 1_000):
        batch = lines[start : start + 1_000]
        expected = theirs.encode_batch(batch, add_special_tokens=False)
        ids = ours.tokenize_in_graph(tf.constant(batch)).to_list()
        different += [
            line
            for line, encoding, mine in zip(batch, expected, ids)
            if encoding.ids != mine
        ]
    assert len(different) <= NUM_LINES // 10_000, different
