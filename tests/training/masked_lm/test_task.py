"""What the pre-training task counts: operations and tokens of an update."""

import json

import pytest
import tensorflow as tf

from tests.training import tiny
from training import pretrain
from training.engine import trainer
from training.masked_lm.task import MaskedLMTask

PEAK = 1e9


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny.write_text(tmp_path_factory.mktemp("data"))


def operations(predictions, tokens, examples):
    """An update of two blocks by hand, from the shapes of its products.

    Each product counts twice, a multiplication and an addition. The last block
    is computed where something is predicted: at the masks, and at the first
    token of each example whose next sentence is judged.
    """
    length, width, heads, inner = 17, 11, 3 * 17, 19
    keys_and_values = query_and_output = 2 * (2 * width * heads)
    scores_and_sums = 2 * (2 * length * heads)
    feed_forward = 2 * (2 * width * inner)
    rest = query_and_output + scores_and_sums + feed_forward
    head = 2 * width * width + 2 * width * len(tiny.VOCABULARY)
    forward = (
        tokens * (keys_and_values + rest)
        + tokens * keys_and_values
        + (predictions + examples) * rest
        + predictions * head
    )
    return 3 * forward  # backward takes two


@pytest.mark.parametrize("next_sentence", [True, False])
def test_operations_of_an_update(data, tmp_path, next_sentence):
    changes = {"num_layers": 2, "next_sentence": next_sentence}
    task = MaskedLMTask(tiny.pretraining(data, tmp_path, **changes))
    task.build()
    totals = {"predictions": 13.0, "tokens": 97.0, "examples": 7.0}
    judged = 7 if next_sentence else 0
    assert task.flops(totals) == pytest.approx(operations(13, 97, judged))


@pytest.mark.slow
def test_reported_rates_are_of_real_tokens(data, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "peak_flops", lambda dtype: PEAK)
    run = tiny.pretraining(
        data,
        tmp_path,
        num_layers=2,
        steps=4,
        log_interval=2,
        evaluation_interval=4,
        checkpoint_interval=4,
    )
    pretrain.train(run)
    dataset = MaskedLMTask(run).training_dataset(
        tf.distribute.InputContext(), 0
    )
    batches = list(dataset.take(4).as_numpy_iterator())
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    trained = [r for r in map(json.loads, lines) if "loss" in r]
    assert [record["step"] for record in trained] == [2, 4]
    means = []
    for record, pair in zip(trained, (batches[:2], batches[2:])):
        tokens = sum(batch["padding_mask"].sum() for batch in pair) / 2
        masks = sum((batch["mask_weights"] > 0).sum() for batch in pair) / 2
        means.append(tokens)
        steps = record["steps_per_second"]
        assert record["tokens_per_second"] / steps == pytest.approx(tokens)
        assert record["model_flops_utilization"] / steps == pytest.approx(
            operations(masks, tokens, 6) / PEAK
        )
    # They are padded, and not all alike.
    assert means[0] != means[1] and max(means) < 6 * 17
