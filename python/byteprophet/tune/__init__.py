"""Tuning a scheduler's settings while the job runs: Bayesian optimisation, as ByteScheduler does.

request.py    the request: number of iterations, and the settings to tune
space.py      the settings to choose from, per scheduler
gaussian.py   a Gaussian process, and expected improvement
search.py     chooses the settings to try next, and those to keep
journal.py    the file that lists all trials

Depends on neither BytePS nor torch; ``torch/retuning/tuning.py`` runs the trials of ``search.py``.
"""
