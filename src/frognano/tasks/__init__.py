"""What is solved: snapshots, environments, suites, grading, validation, and the task directory."""
