"""The files of an export: versions, manifest, card, warm-up, golden answers."""

import pathlib
import re

_NUMBER = re.compile("[0-9]{1,255}")


def find_versions(base_path: pathlib.Path) -> dict[int, pathlib.Path]:
    """Returns the versions in a folder, which may be absent.

    A version is an entry whose name is a number of 64 bits ("7", and "007"
    too); a model server ignores every other name. After
    `sources/storage_path/file_system_storage_path_source.cc` of TF Serving.
    """
    if not base_path.exists():
        return {}
    return {
        int(path.name): path
        for path in sorted(base_path.iterdir())
        if _NUMBER.fullmatch(path.name) and int(path.name) < 2**63
    }
