"""Verb: turns what others have trained into a preset."""
