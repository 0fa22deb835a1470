"""The tasks that fine-tune an encoder: a line in `TASKS` registers one.

A task's folder has `configs.py` with its options (`HeadConfig`), its run
(`FinetuneConfig`) and `NAMED_RUNS`, for `training.finetune`; and `task.py` with
`ExampleBatches` (in `batches.py` if they are long) and a `FinetuningTask`. If
`training.predict` uses the task's models, `configs.py` also has `Prediction`,
the flags, and `task.py` a function `predict` that takes them.
"""

from training.classification import configs as classification
from training.question_answering import configs as question_answering
from training.retrieval import configs as retrieval
from training.token_classification import configs as token_classification

TASKS = {
    "retrieval": retrieval,
    "classification": classification,
    "squad": question_answering,
    "token_classification": token_classification,
}
