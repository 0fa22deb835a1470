"""`python -m export.index`: a corpus embedded and indexed in a folder."""

import sys

from export import messages

# Of the command alone, which `python -m` is about to run: whoever imports this
# may load Keras models, for which the library's classes must be registered.
if sys.argv[:1] == ["-m"]:
    messages.stub_package("keras_fixedhead")
