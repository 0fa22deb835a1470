"""Folders of the Hugging Face Hub, downloaded by their names."""

import pathlib
import re

_PREFIX = "hf://"
_NAME = re.compile(r"[\w.-]+/[\w.-]+")

# No pickles, which may run any code when they are read.
_FILES = ("*.json", "*.txt", "*.safetensors")


def is_hub_name(source):
    """Whether it names a repository, `owner/name`, and no path here.

    What lies in a folder that exists is a path, with `hf://` before it never.
    """
    source = str(source)
    name = source.removeprefix(_PREFIX)
    if _NAME.fullmatch(name) is None:
        return False
    path = pathlib.Path(name)
    return source != name or not (path.exists() or path.parent.exists())


def local_folder(source):
    """The folder of a model, downloaded if `source` names a repository.

    Args:
        source: str or `pathlib.Path`.

    Returns:
        A `pathlib.Path` of a folder that exists.

    Raises:
        FileNotFoundError: There is none, and it cannot be downloaded.
        ValueError: It is a file.
    """
    path = pathlib.Path(source)
    if path.is_dir():
        return path
    if path.exists():
        raise ValueError(f"`folder` must be a folder. Received a file: {path}")
    if not is_hub_name(source):
        raise FileNotFoundError(
            "`folder` must be a folder in Hugging Face's format, or the name "
            "of a repository of the Hugging Face Hub such as "
            "sentence-transformers/all-MiniLM-L6-v2 (hf:// before it where a "
            f"folder here has that name). Received: {str(source)!r}"
        )
    import huggingface_hub

    name = str(source).removeprefix(_PREFIX)
    try:
        return pathlib.Path(
            huggingface_hub.snapshot_download(name, allow_patterns=[*_FILES])
        )
    except Exception as error:  # of the network, of HTTP, of its own
        reason = str(error).strip().partition("\n")[0]
        raise FileNotFoundError(
            f"{name} is no folder here, and cannot be downloaded from the "
            f"Hugging Face Hub ({type(error).__name__}: {reason}). On a "
            "machine that can, call "
            f"huggingface_hub.snapshot_download({name!r}) and pass the "
            "folder that it returns"
        ) from error
