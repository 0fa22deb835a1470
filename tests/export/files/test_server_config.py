"""The model server's files: written once, read for the batch sizes."""

import pytest
from google.protobuf import text_format

from export import messages
from export.files import server_config


def test_written_once(tmp_path):
    folder = tmp_path / "docs"
    folder.mkdir()
    server_config.write(folder)
    config = text_format.Parse(
        (folder / "models.config").read_text(),
        messages.model_server_config_pb2.ModelServerConfig(),
    )
    (model,) = config.model_config_list.config
    assert (model.name, model.base_path) == ("docs", "/models/docs")
    sizes = server_config.batch_sizes(folder)
    assert sizes == sorted(set(sizes))
    for path in folder.iterdir():
        path.write_text(f"allowed_batch_sizes: 7  # {path.name}")
    server_config.write(folder)
    assert server_config.batch_sizes(folder) == [7]
    assert {path.read_text().split()[-1] for path in folder.iterdir()} == {
        *("batching_parameters.txt", "models.config", "monitoring.config")
    }


def test_no_batch_size_is_named(tmp_path):
    server_config.write(tmp_path)
    (tmp_path / "batching_parameters.txt").write_text("max_batch_size: 3")
    with pytest.raises(ValueError, match="names no `allowed_batch_sizes`"):
        server_config.batch_sizes(tmp_path)
