"""A job's profile: what is learned from its iterations, saved, and used by policies and plans.

``model.py`` has the types and the file, ``profiler.py`` makes one in a running worker,
``bursts.py`` finds the steps, ``drift.py`` when it is out of date, ``waits.py`` what urgent
gradients waited for.
"""

from byteprophet.profile.model import Burst, Profile, TensorProfile, read_profile

__all__ = ["Burst", "Profile", "TensorProfile", "read_profile"]
