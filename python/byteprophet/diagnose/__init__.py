"""What a recorded run says about itself: where its time went, and what to blame."""

from byteprophet.diagnose.compare import Comparison, compare
from byteprophet.diagnose.diagnosis import Diagnosis, diagnose

__all__ = ["Comparison", "Diagnosis", "compare", "diagnose"]
