"""What the tests of `training.prepare` share: its calls, and its folders."""

from training.prepare.__main__ import main


def args(*words, **flags):
    given = [
        str(x) for flag in flags.items() for x in (f"--{flag[0]}", flag[1])
    ]
    return [*words, *given]


def prepare(*words, **flags):
    return main(args(*words, **flags))


def content(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
