"""Finds out whether a job could run on given hosts, before one is started: ``doctor --on``.

visits      runs a program once on every host: over ssh, in Slurm, by mpirun, or here
host        what a host says about itself; a program
pairs       how a host reaches the others: ports, clocks, bandwidth; a program
findings    what is good, what is not, and what to do about it
check       all of this, in order
"""

from __future__ import annotations
