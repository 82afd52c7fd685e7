"""A faster strategy for a recorded job, found on its replay.

recorded.py   a recorded run as a job that may be changed
moves.py      a pass, and the moves that it offers
blame.py      says which pass of another package has failed
passes/       the passes of the house
keys.py       changes of the keys of single gradients
region_costs.py   has the script measure what regions of its model cost
gradient_changes.py, gradient_costs.py   gradients in a smaller type, or kept for several steps
regions.py    how long a job computes with regions
by_parameter.py   the same where gradients share buffers
computing.py  what passes that change the model have learned
region_changes.py     what a change of regions is expected to bring
theorems.py, serial_link.py, serial_backward.py   dPRO's theorems, and the link that they speak of
learning.py   which passes can take part, and what they must know
evaluate.py   how long an iteration of a changed job takes, and what its time goes to
critical_path.py  what it consists of
fold.py       two ranks in place of many
search.py     which moves to make
resume.py     goes on from an earlier search
trials.py     the best candidates, run once each
would_add.py  what passes that are not allowed would add
explanation.py    why moves were made, by pass and by theorem
outcome.py    what was found: prediction, interval, bound, decisions
apply.py      runs the recorded command without and with it, in turn
rounds.py     keeps the runs of apply that have finished
"""
