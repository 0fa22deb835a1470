"""Texts to embeddings, in batches of like length.

Shape letters: N texts, D embedding size.
"""

import concurrent.futures

import numpy as np

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


def embed(ask, texts, batch_size, threads=1, on_batch=None):
    """Embeds texts.

    Args:
        ask: function of a string array (dtype object, `bytes`) to the
            embeddings, float32 `[B, D]`; several threads may call it.
        texts: list of N `str`.
        batch_size: int, the most texts of a batch.
        threads: int, how many batches are embedded at once.
        on_batch: function called, in this thread, with the number of texts
            of each batch that is done.

    Returns:
        float32 array `[N, D]`, in the order of `texts`.

    Raises:
        ValueError: if there is no text, or `batch_size` is not positive.
    """
    if not len(texts):
        raise ValueError("`texts` is empty; pass at least one text.")
    if batch_size < 1:
        raise ValueError(f"`batch_size` must be positive, not {batch_size}.")
    encoded = np.empty(len(texts), object)
    encoded[:] = [text.encode() for text in texts]
    # A batch costs what its longest text costs. The longest go first, so that
    # no thread is left alone with them in the end.
    order = np.argsort([-len(text) for text in encoded], kind="stable")
    batches = [
        order[start : start + batch_size]
        for start in range(0, len(order), batch_size)
    ]
    embeddings = None
    pool = concurrent.futures.ThreadPoolExecutor(threads)
    try:
        answers = pool.map(lambda rows: ask(encoded[rows]), batches)
        for rows, answer in zip(batches, answers, strict=True):
            if embeddings is None:
                shape = (len(texts), *answer.shape[1:])
                embeddings = np.empty(shape, np.float32)
            embeddings[rows] = answer
            if on_batch:
                on_batch(len(rows))
    finally:
        pool.shutdown(cancel_futures=True)
    return embeddings
