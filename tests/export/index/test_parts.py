"""Parts of an index folder as Parquet files."""

import numpy as np
import pytest

from export import encoder
from export.index import corpus as corpora
from export.index import parts


def test_reads_rows_of_several_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "_GROUP", 5)
    names = [f"d{n}" for n in range(13)]
    path = tmp_path / "part.parquet"
    shard = corpora.Shard(0, 1, 1, 13, "x")
    vectors = np.arange(13 * 7, dtype=np.float32).reshape(13, 7)
    texts = [name.upper() for name in names]
    parts.write(path, names, texts, vectors, encoder.Model("m", 1), shard)
    found = parts.Documents([path, path], [13, 13])
    rows = list(zip(names, texts)) * 2
    assert [found[row] for row in range(26)] == list(found) == rows
    for row in (-1, 26):
        with pytest.raises(IndexError):
            found[row]
    np.testing.assert_array_equal(parts.vectors(path), vectors)
