"""A faster strategy for a recorded job, found on its replay.

recorded.py   a recorded run as a job that may be changed
moves.py      a pass, and the moves that it offers
passes/       the passes of the house
keys.py       changes of the keys of single gradients
region_costs.py   has the script measure what regions of its model cost
gradient_changes.py, gradient_costs.py   gradients in a smaller type, or kept for several steps
regions.py    how long a job computes with regions
evaluate.py   how long an iteration of a changed job takes, and what its time goes to
critical_path.py  what it consists of
fold.py       two ranks in place of many
search.py     which moves to make
resume.py     goes on from an earlier search
trials.py     the best candidates, run once each
outcome.py    what was found: prediction, interval, bound, decisions
apply.py      runs the recorded command without and with it, in turn
rounds.py     keeps the runs of apply that have finished
"""
