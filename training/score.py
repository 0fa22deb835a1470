"""Verb: exact match and F1 of a file of predicted answers, whoever made it.

python -m training.score dev-v1.1.json predictions.json
"""

import dataclasses
import json
import pathlib
import sys

import tyro

from training.engine import cli


@dataclasses.dataclass(frozen=True)
class ScoreConfig:
    """The questions, and what was answered."""

    data: tyro.conf.Positional[str]
    """SQuAD's JSON or tfds:squad/v1.1:SPLIT."""
    predictions: tyro.conf.Positional[pathlib.Path]
    """JSON object from each question's id to its answer, the official
    format."""


def score(config: ScoreConfig) -> None:
    """Prints the figures as JSON.

    Args:
        config: The files.

    Raises:
        OSError: A file cannot be read.
        ValueError: The data are not SQuAD's or have no answers, or the
            predictions are not in the official format.
    """
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
    try:
        predictions = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"`predictions` {str(path)!r} is not JSON: {error}"
        ) from error
    if not isinstance(predictions, dict):
        raise ValueError(
            f"`predictions` {str(path)!r} must be a JSON object from ids to "
            f"answers. Received: {str(predictions)[:200]}"
        )
    for key, answer in predictions.items():
        if not isinstance(answer, str):
            raise ValueError(
                f"`predictions` {str(path)!r}: the answer to {key!r} must be "
                f"a string. Received: {str(answer)[:200]}"
            )
    return predictions


def parse(args: list[str] | None = None) -> ScoreConfig:
    """Reads what is scored from the command line."""
    return tyro.cli(
        ScoreConfig,
        args=args,
        prog="python -m training.score",
        description="Prints exact match and F1, percent, of answers by the "
        "official definition of SQuAD v1.1, and how many questions were not "
        "answered (missing, which count as wrong) and how many answers are to "
        "no question (unknown, which do not count).",
        use_underscores=True,
    )


def main(args: list[str] | None = None) -> int:
    """Runs the verb and returns its exit status."""
    return cli.run(score, parse(args), "training.score")


if __name__ == "__main__":
    sys.exit(main())
