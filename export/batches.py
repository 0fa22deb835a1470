"""Texts to embeddings, in batches of like length.

Shape letters: N texts, D embedding size.
"""

import asyncio
import concurrent.futures

import numpy as np

from export import protocol
from export.session import DEFAULT_SIGNATURE

_INPUT, OUTPUT = "text", "embedding"


def signature_of(signatures, kind):
    """Returns the name of the signature that embeds texts of a kind.

    Args:
        signatures: `{name: SignatureDef}` of the model.
        kind: name of a prompt, such as "query" or "document"; the default
            signature's is none, and stands in where the model has no such
            prompt.

    Raises:
        ValueError: if that signature does not turn texts into embeddings.
    """
    name = kind if kind in signatures else DEFAULT_SIGNATURE
    found = signatures.get(name)
    if (
        found is None
        or [*found.inputs] != [_INPUT]
        or (OUTPUT not in found.outputs)
    ):
        served = "none" if found is None else ", ".join(sorted(found.outputs))
        raise ValueError(
            f"The model's signature {name!r} must turn {_INPUT!r} into "
            f"{OUTPUT!r}; its outputs: {served}. Export a text embedder, "
            "without --raw_encoder."
        )
    return name


class Plan:
    """Which texts are embedded together, and how many batches at once.

    Args:
        texts: list of N `str`.
        batch_size: int, the most texts of a batch.
        concurrency: int, how many batches are embedded at once.

    Attributes:
        batches: list of `(rows, texts)`: an int array `[B]` of places in
            `texts`, and a string array `[B]` (dtype object, `bytes`).
        concurrency: as given.
        embeddings: float32 array `[N, D]`, in the order of `texts`, once
            every batch is filled in.

    Raises:
        ValueError: if there is no text, one is no `str` or has no UTF-8, or a
            number is not positive.
    """

    def __init__(self, texts, batch_size, concurrency=1):
        if isinstance(texts, (str, bytes)):
            raise ValueError(
                f"`texts` must be a list of str, received {texts!r}."
            )
        if not len(texts):
            raise ValueError("`texts` is empty; pass at least one text.")
        for name, value in (
            ("batch_size", batch_size),
            ("concurrency", concurrency),
        ):
            if value < 1:
                raise ValueError(f"`{name}` must be positive, not {value}.")
        array = np.empty(len(texts), object)
        for row, text in enumerate(texts):
            array[row] = text
        encoded = protocol.to_utf8(array, "texts")
        # A batch costs what its longest text costs. The longest go first, so
        # that no worker is left alone with them in the end.
        order = np.argsort([-len(text) for text in encoded], kind="stable")
        self.batches = [
            (rows, encoded[rows])
            for rows in (
                order[start : start + batch_size]
                for start in range(0, len(order), batch_size)
            )
        ]
        self.concurrency = concurrency
        self._count = len(texts)
        self.embeddings = None

    def fill(self, rows, answer):
        """Puts the embeddings of a batch, `[B, D]`, where they belong.

        Raises:
            ValueError: if they have another size than those before.
        """
        if self.embeddings is None:
            shape = (self._count, *answer.shape[1:])
            self.embeddings = np.empty(shape, np.float32)
        if answer.shape[1:] != self.embeddings.shape[1:]:
            raise ValueError(
                f"A batch has embeddings of size {answer.shape[1:]}, those "
                f"before {self.embeddings.shape[1:]}: the server has loaded "
                "another version meanwhile. Pass `version`."
            )
        self.embeddings[rows] = answer


def embed(ask, plan, on_batch=None):
    """Embeds texts.

    Args:
        ask: function of a string array (dtype object, `bytes`) to the
            embeddings, float32 `[B, D]`; several threads may call it.
        plan: a `Plan`.
        on_batch: function called, in this thread, with the number of texts
            of each batch that is done.

    Returns:
        float32 array `[N, D]`, in the order of the texts.
    """
    pool = concurrent.futures.ThreadPoolExecutor(plan.concurrency)
    try:
        answers = pool.map(lambda batch: ask(batch[1]), plan.batches)
        for (rows, _), answer in zip(plan.batches, answers, strict=True):
            plan.fill(rows, answer)
            if on_batch:
                on_batch(len(rows))
    finally:
        pool.shutdown(cancel_futures=True)
    return plan.embeddings


async def embed_async(ask, plan, on_batch=None):
    """`embed` of an `ask` that is a coroutine function."""
    waiting = iter(plan.batches)

    async def work():
        for rows, texts in waiting:
            plan.fill(rows, await ask(texts))
            if on_batch:
                on_batch(len(rows))

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(plan.concurrency, len(plan.batches))):
                group.create_task(work())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return plan.embeddings
