"""What stands in a model's folder: its versions, and the files in and beside
each."""
