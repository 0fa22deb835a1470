"""Texts to embeddings, in batches of like length.

Shape letters: N texts, B texts of a batch, D embedding size.
"""

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable, Mapping, Sequence

import numpy as np

from export import protocol
from export.session import DEFAULT_SIGNATURE

OUTPUT = "embedding"
OnBatch = Callable[[int], None] | None


def signature_of(signatures: Mapping, kind: str | None) -> str:
    """Returns the name of the signature that embeds texts of a kind.

    `kind` is the name of a prompt, such as "query" or "document". A model
    without that prompt embeds by the default signature, which has no prompt.
    """
    name = kind if kind and kind in signatures else DEFAULT_SIGNATURE
    found = signatures.get(name)
    inputs, outputs = ([*found.inputs], [*found.outputs]) if found else ([], [])
    if inputs != ["text"] or OUTPUT not in outputs:
        raise ValueError(
            f"The model's signature {name!r} must turn 'text' into "
            f"{OUTPUT!r}; its outputs: {', '.join(sorted(outputs)) or 'none'}. "
            "Export a text embedder, without --raw_encoder."
        )
    return name


class Plan:
    """Which texts are embedded together, and how many batches at once.

    `batches` has `(rows, texts)`: positions in `texts`, int `[B]`, and strings
    `[B]` (dtype object, `bytes`). `embeddings`, float32 `[N, D]`, has the order
    of `texts`; D is 0 until a batch is filled in.
    """

    def __init__(
        self,
        texts: Sequence[str],
        batch_size: int,
        concurrency: int,
        on_batch: OnBatch,
    ):
        if isinstance(texts, (str, bytes)):
            raise ValueError(
                f"`texts` must be a list of str, received {texts!r}."
            )
        if not len(texts):
            raise ValueError("`texts` is empty; pass at least one text.")
        sizes = {"batch_size": batch_size, "concurrency": concurrency}
        for name, value in sizes.items():
            if value < 1:
                raise ValueError(f"`{name}` must be positive, not {value}.")
        array = np.fromiter(texts, object, len(texts))
        encoded = protocol.to_utf8(array, "texts")
        # A batch costs what its longest text costs. The longest go first, so
        # that no worker is left alone with them in the end.
        order = np.argsort([-len(text) for text in encoded], kind="stable")
        self.batches = []
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            self.batches.append((rows, encoded[rows]))
        self.concurrency, self._on_batch = concurrency, on_batch
        self.embeddings = np.empty([len(texts), 0], np.float32)

    def fill(self, rows: np.ndarray, answer: np.ndarray) -> None:
        """Stores the embeddings of a batch, `[B, D]`; calls `on_batch` with
        the number of its texts."""
        if not self.embeddings.size:
            shape = (len(self.embeddings), *answer.shape[1:])
            self.embeddings = np.empty(shape, np.float32)
        if answer.shape[1:] != self.embeddings.shape[1:]:
            raise ValueError(
                f"A batch has embeddings of size {answer.shape[1:]}, earlier "
                f"ones of {self.embeddings.shape[1:]}: the server has loaded "
                "another version meanwhile. Pass `version`."
            )
        self.embeddings[rows] = answer
        if self._on_batch:
            self._on_batch(len(rows))


def embed(ask: Callable[[np.ndarray], np.ndarray], plan: Plan) -> np.ndarray:
    """Embeds the texts of a plan: float32 `[N, D]`, in their order.

    Several threads call `ask`, with a string array `[B]`, for embeddings
    `[B, D]`, which the calling thread fills in.
    """
    pool = concurrent.futures.ThreadPoolExecutor(plan.concurrency)
    try:
        answers = pool.map(lambda batch: ask(batch[1]), plan.batches)
        for (rows, _), answer in zip(plan.batches, answers, strict=True):
            plan.fill(rows, answer)
    finally:
        pool.shutdown(cancel_futures=True)
    return plan.embeddings


async def embed_async(
    ask: Callable[[np.ndarray], Awaitable[np.ndarray]], plan: Plan
) -> np.ndarray:
    """Does what `embed` does in tasks of the running event loop."""
    waiting = iter(plan.batches)

    async def work():
        for rows, texts in waiting:
            plan.fill(rows, await ask(texts))

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(plan.concurrency, len(plan.batches))):
                group.create_task(work())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return plan.embeddings
