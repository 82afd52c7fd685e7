"""Watching a worker process from inside: the plug-in's transfers, for whoever learns from them.

``observer.py`` has the thread, ``wanted.py`` the list of consumers, ``process.py`` what the front
of a framework calls at start and end.
"""

from byteprophet.observe.observer import Consumer, Job, Observer, TransferSource

__all__ = ["Consumer", "Job", "Observer", "TransferSource"]
