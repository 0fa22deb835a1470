"""Scores a file of predicted answers, from any model, against SQuAD v1.1.

    python -m training.score dev-v1.1.json predictions.json

Prints exact match and F1 in percent, by SQuAD's official definition, with the
number of questions without an answer (missing, which count as wrong) and of
answers to no question (unknown, which do not count).
"""

import dataclasses
import json
import pathlib
import sys

import tyro

from training.engine import cli


@dataclasses.dataclass(frozen=True)
class ScoreConfig:
    """The questions and the predicted answers."""

    data: tyro.conf.Positional[str]
    """SQuAD's JSON or tfds:squad/v1.1:SPLIT."""
    predictions: tyro.conf.Positional[pathlib.Path]
    """JSON object from each question's id to its answer, the official
    format."""


def score(config: ScoreConfig) -> None:
    """Prints the scores as JSON."""
    predictions = _read_predictions(config.predictions)
    # Keras takes seconds to import, which `--help` need not wait for.
    from keras_fixedhead import squad
    from training.corpus.squad import read_questions

    questions = read_questions(
        config.data, lambda line: print(line, file=sys.stderr)
    )
    if not questions:
        raise ValueError(
            f"`data` {config.data!r} must have questions with answers. "
            "Received: none"
        )
    answers = {
        question.id: [text for text, _ in question.answers]
        for question in questions
    }
    print(json.dumps(squad.score_answers(answers, predictions), indent=2))


def _read_predictions(path):
    text = path.read_text(encoding="utf-8")
    try:
        predictions = json.loads(text)
        if all(isinstance(answer, str) for answer in predictions.values()):
            return predictions
    except (ValueError, AttributeError):
        pass
    raise ValueError(
        f"`predictions` {str(path)!r} must be a JSON object from ids to "
        f"answers, strings. Received: {text[:200]}"
    )


main = cli.command(score, ScoreConfig, "training.score", __doc__)

if __name__ == "__main__":
    sys.exit(main())
