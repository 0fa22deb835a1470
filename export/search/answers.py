"""Queries to the documents of an index.

Shape letters: Q queries.
"""

from export.search import report
from keras_fixedhead import retrieval


def answer(opened, searched, queries, k):
    """Finds the documents of queries.

    Args:
        opened: the `encoder.Encoder` of the index.
        searched: an `index_folder.Index`.
        queries: list of Q texts, each without a `query_file.problem`.
        k: int, the most hits of a query.

    Returns:
        A list of Q lists of `report.Hit`s, best first.
    """
    ranking = retrieval.search_index(
        searched.vectors, opened.embed(queries, "query"), k
    )
    return [
        [
            report.Hit(number, *searched.documents[row], float(score))
            for number, (row, score) in enumerate(zip(rows, scores), 1)
            if row >= 0
        ]
        for rows, scores in zip(ranking.documents, ranking.scores)
    ]
