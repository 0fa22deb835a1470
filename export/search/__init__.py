"""`python -m export.search`: queries answered from an index, and measured."""

import sys

from export import without_keras

# As in `export.index`.
if sys.argv[:1] == ["-m"]:
    without_keras.defer("keras_fixedhead")
