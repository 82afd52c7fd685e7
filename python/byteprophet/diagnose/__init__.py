"""Diagnoses a recorded run: shows where its time went, and what caused the waits."""

from byteprophet.diagnose.compare import Comparison, compare
from byteprophet.diagnose.diagnosis import Diagnosis, diagnose

__all__ = ["Comparison", "Diagnosis", "compare", "diagnose"]
