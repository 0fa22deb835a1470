"""What a fine-tuned model says of a file, task by task."""
