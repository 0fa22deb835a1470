"""Launchers: the workers of one run, on one machine, on several, in a pod."""
