"""`python -m export.search`: queries answered from an index, and measured."""

import sys

from export import messages

# As in `export.index`.
if sys.argv[:1] == ["-m"]:
    messages.stub_package("keras_fixedhead")
