"""The manifest of an export: the SHA-256 of each of its files."""

import json
import pathlib
import stat

from export.files import digests

FILE = "assets.extra/manifest.json"


def paths(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """Returns every file of an export, by POSIX name."""
    return {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if not path.is_dir()
    }


def irregular(folder: pathlib.Path) -> list[str]:
    """Returns the names of links, pipes and other special files.

    A reader waits for a pipe, and a model server may not see the target of a
    link.
    """
    return [
        path.relative_to(folder).as_posix()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or not (path.is_file() or path.is_dir())
    ]


def write(folder: pathlib.Path):
    """Makes every file readable to all users, as the model server is another
    user, and writes the manifest."""
    (folder / FILE).write_text("", encoding="utf-8")
    for path in (folder, *folder.rglob("*")):
        mode = 0o555 if path.is_dir() else 0o444
        path.chmod(stat.S_IMODE(path.stat().st_mode) | mode)
    files = {
        name: digests.of_file(path)
        for name, path in paths(folder).items()
        if name != FILE and path.is_file()
    }
    text = json.dumps({"files": files}, indent=2) + "\n"
    (folder / FILE).write_text(text, encoding="utf-8")


def differences(folder: pathlib.Path) -> list[str]:
    """Returns a line for each file that differs from the manifest."""
    try:
        manifest = json.loads((folder / FILE).read_text(encoding="utf-8"))
        wanted = dict(manifest["files"].items())
    except (
        *(AttributeError, KeyError, RecursionError),
        *(TypeError, ValueError),
    ) as error:
        raise ValueError(f"{FILE} is not a manifest: {error!r}") from error
    found = paths(folder)
    found.pop(FILE)
    differing = [f"{name} is missing" for name in wanted if name not in found]
    for name, path in found.items():
        if name not in wanted:
            differing.append(f"{name} is not in the manifest")
        elif not path.is_file() or digests.of_file(path) != wanted[name]:
            differing.append(f"{name} has changed")
    return differing
