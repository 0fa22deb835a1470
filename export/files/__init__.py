"""The files of an export: versions, manifest, card, warm-up, golden answers."""

import hashlib
import json
import pathlib
import re
import stat

MANIFEST = "assets.extra/manifest.json"
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


def digest(path: pathlib.Path) -> str:
    """Returns the SHA-256 of a file, as hex."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _digests(folder):
    return {
        path.relative_to(folder).as_posix(): digest(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / MANIFEST
    }


def write_manifest(folder: pathlib.Path) -> None:
    """Writes the digest of every file, and makes all files readable to all
    users, as the model server is another user."""
    text = json.dumps({"files": _digests(folder)}, indent=2) + "\n"
    (folder / MANIFEST).write_text(text, encoding="utf-8")
    for path in (folder, *folder.rglob("*")):
        mode = 0o555 if path.is_dir() else 0o444
        path.chmod(stat.S_IMODE(path.stat().st_mode) | mode)


def differences(folder: pathlib.Path) -> list[str]:
    """Returns a line for each file that differs from the manifest."""
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    wanted, found = manifest["files"], _digests(folder)
    lines = []
    for name in sorted(wanted.keys() | found.keys()):
        if name not in found:
            lines.append(f"{name} is missing")
        elif name not in wanted:
            lines.append(f"{name} is not in the manifest")
        elif found[name] != wanted[name]:
            lines.append(f"{name} has changed")
    return lines
