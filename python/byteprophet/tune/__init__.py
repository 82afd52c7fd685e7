"""Tuning a scheduler's settings while the job runs: Bayesian optimisation, as ByteScheduler does.

request.py    what was asked for: iterations, and which settings
space.py      the settings to choose from, per scheduler
gaussian.py   a Gaussian process, and expected improvement
search.py     which settings to try next, and which one to keep
journal.py    the file that says what was tried

Knows neither BytePS nor torch; ``torch/tuning.py`` tries what ``search.py`` asks for.
"""
