"""Runs checks in a process of its own, since a check may crash it.

`python -m export.checks FOLDER NAME...` prints a JSON line as each check
starts, as it goes on, and as it ends.
"""

import json
import sys

from export import checks
from export.checks.exported import Exported


def main(folder: str, names: list[str]):
    def tell(**report):
        print(json.dumps(report), flush=True)

    exported = Exported(folder)
    for name in names:
        tell(name=name)
        exported.tell = lambda doing, name=name: tell(name=name, doing=doing)
        passed, detail = checks.run(name, exported)
        tell(name=name, passed=passed, detail=detail)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
