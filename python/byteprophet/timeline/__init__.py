"""What happened, on one clock: records of transfers, and their files."""
