"""What is known of one way to keep and search embeddings."""

import dataclasses

NATIVE = "native"


@dataclasses.dataclass(frozen=True)
class Row:
    """One way to keep and search embeddings, averaged over collections.

    Attributes:
        dimension: Numbers kept of an embedding.
        reduction: `"native"`, `"truncate"` or `"pca"`.
        precision: Of `retrieval.PRECISIONS`.
        search: `"exact"` or `"approximate"`.
        ndcg_at_10: Mean over queries.
        difference: Of it to that of all numbers, float32, exact.
        interval: Of the difference, 95%: a bootstrap of the queries, paired.
        recall_at_100: Mean over queries.
        bytes_per_document: Of the index.
        milliseconds_per_query: Median of single queries on one thread.
        build_seconds: Of learning and filling the index, on all threads.
    """

    dimension: int
    reduction: str
    precision: str
    search: str
    ndcg_at_10: float
    difference: float
    interval: tuple[float, float]
    recall_at_100: float
    bytes_per_document: float
    milliseconds_per_query: float
    build_seconds: float
