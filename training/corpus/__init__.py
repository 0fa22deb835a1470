"""Where text comes from: files, datasets and folders of prepared data."""
