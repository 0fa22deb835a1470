"""Verb: what a fine-tuned model says of a file.

    python -m training.predict --task squad --model runs/squad/preset \
        --input dev-v1.1.json --output predictions.json

Prints how much of it is right, where the file says what is.
"""

import sys

import tyro

from training.engine import cli
from training.engine.prediction_config import PredictConfig


def predict(config: PredictConfig) -> None:
    """Predicts, writes and prints; see `prediction.py` of the task."""
    cli.import_tensorflow()
    if config.task == "squad":
        from training.question_answering.prediction import predict as run
    else:
        from training.classification.prediction import predict as run

    figures = run(config)
    for name, value in figures.items():
        print(f"{name} {value:.4f}")
    print(f"wrote {config.output}")


def parse(args: list[str] | None = None) -> PredictConfig:
    """Reads what is predicted from the command line."""
    return tyro.cli(
        PredictConfig,
        args=args,
        prog="python -m training.predict",
        description="Answers the questions of a file in SQuAD's format, or "
        "names the class of each of its texts or pairs, with a preset that "
        "training.finetune left. Prints exact match and F1, or the accuracy, "
        "of what the file has answers or labels for.",
        use_underscores=True,
    )


def main(args: list[str] | None = None) -> int:
    """Runs the verb and returns its exit status."""
    return cli.run(predict, parse(args), "training.predict")


if __name__ == "__main__":
    sys.exit(main())
