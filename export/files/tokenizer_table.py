"""The vocabulary in the table of a `tensorflow_text.FastWordpieceTokenizer`.

A graph holds the table as a FlatBuffer, `FastWordpieceTokenizerConfig` of
tensorflow-text 2.20.
"""

import struct

from flatbuffers import number_types, table
from flatbuffers.encode import Get

# Numbers of fields in that schema.
_SUFFIX_INDICATOR, _TOKENS, _IS_SUFFIX = 5, 12, 13
_OFFSET_BYTES = 4


def vocabulary_of(content):
    """Returns the tokens, a list of str, in the order of their ids.

    Args:
        content: bytes, the table.

    Raises:
        ValueError: if it is not such a table, or has no vocabulary.
    """
    try:
        root = table.Table(
            content, Get(number_types.UOffsetTFlags.packer_type, content, 0)
        )
        suffix = root.String(root.Pos + _field(root, _SUFFIX_INDICATOR))
        tokens, flags = (
            (root.Vector(offset), root.VectorLen(offset))
            for offset in (_field(root, _TOKENS), _field(root, _IS_SUFFIX))
        )
        if tokens[1] != flags[1] or flags[0] + flags[1] > len(content):
            raise ValueError(f"{tokens[1]} tokens and {flags[1]} flags")
        return [
            (
                (suffix if content[flags[0] + i] else b"")
                + root.String(tokens[0] + _OFFSET_BYTES * i)
            ).decode()
            for i in range(tokens[1])
        ]
    except (struct.error, IndexError, TypeError) as error:
        raise ValueError(f"an offset leads out of it ({error})") from error


def _field(root, number):
    offset = root.Offset(4 + 2 * number)  # two entries come before the fields
    if not offset:
        raise ValueError(f"field {number} is missing")
    return offset
