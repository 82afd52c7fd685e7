"""Runs the roles of a job on other hosts: over ssh, in a Slurm allocation, or by mpirun.

Other packages call ``launchers.open_launcher``. job.py describes how the parts work together.
"""

from __future__ import annotations
