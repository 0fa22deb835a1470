"""The folder of versions that a model server watches."""


def find(base_path):
    """Returns the numbers of the versions in a folder, unsorted.

    A version is a subfolder whose name is a number; a model server passes
    over every other name.

    Args:
        base_path: `pathlib.Path` of the folder of versions; it may be absent.
    """
    if not base_path.exists():
        return []
    return [
        int(path.name)
        for path in base_path.iterdir()
        if path.name.isdecimal() and path.is_dir()
    ]
