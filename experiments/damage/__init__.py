"""Damaged inputs for everything that byteprophet reads; used by ``damaged_inputs.py`` and tests.

``of_bytes``, ``of_values`` and ``of_events`` damage a content, each from a seeded generator.
``samples`` makes contents to damage, with real commands. ``formats`` says what is read by whom,
``attempt`` damages, reads and judges, ``apart`` does that in a process with limits.
"""
