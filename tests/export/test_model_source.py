"""What embeds for an index or a search, asked over TLS with headers."""

import numpy as np
import pytest

from export import client, model_source
from tests.export.fronts import grpc_front, rest_front


@pytest.mark.parametrize("front", [rest_front, grpc_front])
def test_asks_a_server_behind_tls(front, server, certificates, tmp_path):
    headers = tmp_path / "headers.json"
    headers.write_text('{"Authorization": "Bearer token"}')
    tls = certificates.http if front is rest_front else certificates.grpc
    with front(server, tls=tls(mutual=True)) as opened:
        source = model_source.Source(
            server=opened.url,
            model_name="tiny",
            ca=certificates.ca,
            certificate=certificates.client,
            key=certificates.client_key,
            headers=headers,
        )
        source.check()
        with source.open() as model:
            embeddings = model.embed(["a dog"], "query")
    with client.connect(server.grpc_url, "tiny") as connection:
        expected = connection.embed(["a dog"], "query")
    np.testing.assert_array_equal(embeddings, expected)
    for seen in opened.seen:
        received = seen if front is grpc_front else seen[2]
        assert received["authorization"] == "Bearer token"


@pytest.mark.parametrize("content", ["Bearer s3cret", '["s3cret"]'])
def test_headers_that_are_none(content, tmp_path):
    path = tmp_path / "headers.json"
    path.write_text(content)
    source = model_source.Source(
        server="http://127.0.0.1:1", model_name="tiny", headers=path
    )
    with pytest.raises(ValueError, match="`headers` .*headers.json") as caught:
        with source.open():
            pass
    assert "s3cret" not in str(caught.value)
