"""`python -m export.search`: queries answered from an index, and measured."""
