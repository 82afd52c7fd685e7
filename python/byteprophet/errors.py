"""The exceptions that reach the command line.

``Error``
 ├── ``UserError``   wrong usage or input: one line, exit status 2
 └── ``JobFailed``   a job started and did not finish well: one line, exit status 1
"""

from __future__ import annotations


class Error(Exception):
    """Base class; its text is one line that says what, where, and what to do."""


class UserError(Error):
    """The request cannot be carried out as written."""


class JobFailed(Error):
    """A role of a job failed, was killed, or did not answer in time."""
