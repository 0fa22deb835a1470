"""Retrieval: from a data folder to a preset, and its errors."""

import numpy as np
import pytest

from keras_fixedhead import FixedHeadTextEmbedder
from tests.training import tiny
from tests.training.task_tests import Case, TaskTests, first_batch
from training import finetune
from training.engine.preset import SHAPE
from training.engine.strategy import get_strategy
from training.retrieval.configs import NAMED_RUNS
from training.retrieval.task import RetrievalTask, retrieval_figures

CASE = Case(
    finetune,
    NAMED_RUNS,
    tiny.retrieval,
    {"query_prompt": "one two ", "learn_temperature": True, "steps": 12},
    tiny.write_pairs,
)
# What a run takes from the preset that it starts from.
FROM_INIT = dict.fromkeys(SHAPE)


class TestVerb(TaskTests):
    case = CASE
    other = {"head_size": 7}
    refused = [
        ({"query_length": 2}, "`query_length` .* Received: 2"),
        ({"document_length": 19}, "`document_length` .* Received: 19"),
        ({"temperature": 0.0}, "`temperature` .* Received: 0.0"),
        ({"validation_pairs": 37}, "`validation_pairs` .* Received: 37"),
        ({"pooling_mode": "sum"}, "`pooling_mode` .*'sum'"),
    ]


def test_preset_is_the_embedder_that_was_trained(data, run, tmp_path):
    losses = [r["loss"] for r in run.records if "loss" in r]
    assert np.mean(losses[-3:]) < np.mean(losses[:3])
    embedder = FixedHeadTextEmbedder.from_preset(str(run.preset))
    prompts = {"query": "one two ", "document": ""}
    assert embedder.preprocessor.prompts == prompts
    assert embedder.preprocessor.sequence_length == 13
    backbone = embedder.backbone
    assert (backbone.num_heads, backbone.head_size) == (3, 5)
    # The metrics of the last evaluation come from these weights.
    pairs = RetrievalTask(CASE.config(data, tmp_path))._validation
    queries = embedder.encode_text(pairs.queries, prompt="query", verbose=0)
    documents = embedder.encode_text(pairs.documents, verbose=0)
    figures = retrieval_figures(queries, documents, pairs.keys)
    last = run.records[-1]
    assert {name: last[name] for name in figures} == pytest.approx(figures)


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """An embedder of other sizes, pooling and prompts than a run's own."""
    folder = tmp_path_factory.mktemp("start")
    embedder = tiny.embedder(prompts={"query": "two ", "other": "one "})
    embedder.save_to_preset(str(folder))
    return folder


def first(rows, size):
    """The first numbers of each row, as a row of length 1."""
    return rows[:, :size] / np.linalg.norm(rows[:, :size], axis=1)[:, None]


@pytest.mark.slow
def test_starts_from_a_preset(start, tmp_path):
    data_alone = tiny.write_pairs(tmp_path / "data")
    # Not even a vocabulary is needed.
    (data_alone / "vocabulary.txt").unlink()
    changes = FROM_INIT | {"init": start, "steps": 2, "warmup_steps": 1}
    changes |= {"matryoshka_dims": (5, 3), "hard_negatives": 2}
    changes |= {"document_prompt": "red ", "learning_rate": 1e-9}
    finetune.train(tiny.retrieval(data_alone, tmp_path / "run", **changes))
    before = FixedHeadTextEmbedder.from_preset(str(start))
    after = FixedHeadTextEmbedder.from_preset(str(tmp_path / "run" / "preset"))
    for one, two in zip(before.get_weights(), after.get_weights()):
        np.testing.assert_allclose(one, two, atol=1e-7)
    assert after.pooling_mode == "cls"
    assert after.embedding_dim is None
    assert after.preprocessor.prompts == {
        "query": "two ",
        "document": "red ",
        "other": "one ",
    }
    config = after.backbone.get_config()
    assert config.pop("dropout") == 0.1
    theirs = before.backbone.get_config()
    for name in config.keys() - {"name", "dtype"}:
        assert config[name] == theirs[name], name
    # Figures of each size are those of its first numbers.
    last = tiny.metrics(tmp_path / "run")[-1]
    config = tiny.retrieval(data_alone, tmp_path, **changes)
    pairs = RetrievalTask(config)._validation
    queries = after.encode_text(pairs.queries, prompt="query", verbose=0)
    documents = after.encode_text(pairs.documents, prompt="document", verbose=0)
    for size in (5, 3):
        figures = retrieval_figures(
            first(queries, size), first(documents, size), pairs.keys
        )
        assert figures == pytest.approx(
            {name: last[f"{name}_d{size}"] for name in figures}
        )


def numpy_loss(query, candidates, answer, left_out):
    scores = candidates @ query / 0.05
    kept = [i for i in range(len(scores)) if i == answer or not left_out[i]]
    return np.log(np.exp(scores[kept]).sum()) - scores[answer]


def test_loss_by_hand(data, start, tmp_path):
    """Its mean over sizes, with the negatives of all and nobody's twice."""
    changes = FROM_INIT | {"init": start, "dropout": 0.0}
    changes |= {"matryoshka_dims": (5, 3), "hard_negatives": 2}
    task = CASE.task(data, tmp_path, global_batch_size=23, **changes)
    batch = first_batch(task)
    keys, negative_keys = batch["keys"].numpy(), batch["negative_keys"].numpy()
    assert (negative_keys < 0).any()
    assert set(negative_keys) & set(keys[:, 1])
    queries, documents, negatives = (
        task.model.embedder.embed_packed(batch[name]).numpy()
        for name in ("query", "document", "negative")
    )
    same = (keys[:, None] == keys[None]).any(-1)
    unfit = [(negative_keys < 0) | (negative_keys == key) for key in keys[:, 1]]
    means = {}
    for size in (13, 5, 3):
        q, d, n = (first(x, size) for x in (queries, documents, negatives))
        both = [*d, *n]
        means[size] = np.mean(
            [
                numpy_loss(q[i], np.array(both), i, [*same[i], *unfit[i]]) / 2
                + numpy_loss(d[i], q, i, same[i]) / 2
                for i in range(23)
            ]
        )
    loss, sizes = task.loss(batch, task.totals(batch))
    assert float(loss) == pytest.approx(np.mean(list(means.values())), abs=1e-4)
    assert float(sizes["loss_d5"]) == pytest.approx(means[5], abs=1e-4)
    assert float(sizes["loss_d3"]) == pytest.approx(means[3], abs=1e-4)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"init": None}, "`init` .* Received: init=None, without num_layers"),
        ({"num_heads": 7}, r"num_heads \(there 5, now 7\)"),
        ({"lowercase": False}, "`lowercase` must be as in init, True"),
        ({"document_length": 20}, "max_sequence_length=19. Received: 20"),
        ({"matryoshka_dims": (13,)}, "below .* 13. Received: .13"),
        ({"matryoshka_dims": (5, 5)}, "`matryoshka_dims` must be different"),
        ({"hard_negatives": -1}, "`hard_negatives` .* Received: -1"),
    ],
)
def test_starts_that_do_not_fit(data, start, tmp_path, change, message):
    changes = FROM_INIT | {"init": start} | change
    with pytest.raises(ValueError, match=message):
        finetune.train(tiny.retrieval(data, tmp_path / "run", **changes))
    assert not (tmp_path / "run").exists()


def test_a_start_of_other_outputs(data, start, tmp_path):
    """A projection stays, and cut embeddings are refused."""
    plain = FixedHeadTextEmbedder.from_preset(str(start))
    projected, cut = (
        FixedHeadTextEmbedder(plain.backbone, plain.preprocessor, **options)
        for options in ({"projection_dim": 5}, {"embedding_dim": 7})
    )
    projected.save_to_preset(str(tmp_path / "projected"))
    changes = FROM_INIT | {"init": tmp_path / "projected"}
    with get_strategy("one_device").scope():
        task = RetrievalTask(tiny.retrieval(data, tmp_path / "run", **changes))
        task.build()
    np.testing.assert_array_equal(
        task.model.embedder.encode_text(["one two"], verbose=0),
        projected.encode_text(["one two"], verbose=0),
    )
    with pytest.raises(ValueError, match="that of an embedding, 5"):
        RetrievalTask(
            tiny.retrieval(
                data, tmp_path / "run", **changes, matryoshka_dims=(7,)
            )
        )
    cut.save_to_preset(str(tmp_path / "cut"))
    changes = FROM_INIT | {"init": tmp_path / "cut"}
    with pytest.raises(ValueError, match="embedding_dim=7"):
        finetune.train(tiny.retrieval(data, tmp_path / "run", **changes))


def test_hard_negatives_must_be_in_the_data(tmp_path):
    data = tiny.write_pairs(tmp_path / "data", negatives=[])
    with pytest.raises(ValueError, match="no pair of the data has"):
        finetune.train(tiny.retrieval(data, tmp_path / "run", hard_negatives=1))


def test_bad_data_is_named(tmp_path, capsys):
    data, workdir = tiny.write_pairs(tmp_path / "data"), tmp_path / "run"
    with open(data / "train.jsonl", "a") as lines:
        lines.write('{"query": "red"}\n')
    error = CASE.error(capsys, data, workdir)
    assert f"{data / 'train.jsonl'}:38" in error
    (data / "train.jsonl").write_text("\n")
    error = CASE.error(capsys, data, workdir)
    assert "some of the 0 pairs, of 0 documents" in error
    assert not workdir.exists()


def test_figures_against_a_search_by_hand():
    rng = np.random.default_rng(2)
    queries, documents = rng.normal(size=(2, 23, 3))
    keys = np.stack([np.arange(23), np.arange(23)], axis=1)
    keys[7, 1] = keys[5, 1]  # one document twice
    keys[11, 0] = keys[13, 0]  # one query twice
    ranks = []
    for i in range(23):
        order = sorted(range(23), key=lambda j: -(queries[i] @ documents[j]))
        other = {5: 7, 7: 5, 11: 13, 13: 11}.get(i)
        ranks.append([j for j in order if j != other].index(i) + 1)
    ranks = np.array(ranks)
    assert retrieval_figures(queries, documents, keys) == pytest.approx(
        {
            "recall@1": np.mean(ranks == 1),
            "recall@10": np.mean(ranks <= 10),
            "mrr@10": np.mean([1 / r if r <= 10 else 0 for r in ranks]),
        }
    )
