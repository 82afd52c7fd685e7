"""Compares predictions with jobs that are run afterwards.

cases.py       the job that is recorded, and jobs that each differ from it in one way
run.py         runs them in rounds, and keeps their measurements
validation.py  predicts each job from the record of the first, and compares
"""
