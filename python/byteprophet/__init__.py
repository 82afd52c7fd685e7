"""byteprophet."""
