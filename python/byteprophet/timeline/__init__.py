"""What happened: tables of events and their files, readers of others' traces, exporters."""
