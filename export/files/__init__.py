"""The files of an export: versions, manifest, card, warm-up, golden answers."""
