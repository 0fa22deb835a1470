"""What can be learned: one file per task, each a `training.tasks.task.Task`."""
