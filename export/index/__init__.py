"""`python -m export.index`: a corpus embedded and indexed in a folder."""
