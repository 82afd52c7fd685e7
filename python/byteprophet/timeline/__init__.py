"""Recorded events: tables of them and their files, readers of foreign traces, exporters."""
