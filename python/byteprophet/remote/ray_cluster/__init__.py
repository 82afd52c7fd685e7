"""Runs the roles of a job in a Ray cluster: an actor per role, in a placement group.

actor     starts a role on its node, and passes on what it says
client    makes the group and the actors, shows logs, and waits; a program
site      has a client do this
"""

from __future__ import annotations
