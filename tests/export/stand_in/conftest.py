"""A folder of versions whose answers tell which one gave them."""

import pytest

from tests.contract import models


@pytest.fixture(scope="session")
def half_plus(tmp_path_factory):
    """Versions 1 (`x / 2 + 2`) and 2 (`x / 2 + 3`)."""
    folder = tmp_path_factory.mktemp("half_plus")
    for number, offset in models.HALF_PLUS.items():
        models.write_half_plus(folder / str(number), offset)
    return folder
