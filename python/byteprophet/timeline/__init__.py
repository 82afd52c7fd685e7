"""What happened in a job, and when."""
