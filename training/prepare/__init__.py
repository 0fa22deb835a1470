"""Data preparation: from text and code to data folders."""
