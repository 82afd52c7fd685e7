"""A faster strategy for a recorded job, found on its replay.

recorded.py   a recorded run as a job that may be changed
moves.py      a pass, and the moves that it offers
other_transport.py    the recorded command under other transports
blame.py      says which pass of another package has failed
passes/       the passes of the house
cuts.py       buckets as cuts of one order of parameters, and changes of these
view.py       coarse views of a model, and its repeated parts
keys.py       changes of the keys of single gradients
region_costs.py   has the script measure what regions of its model cost
gradient_changes.py, gradient_costs.py   gradients in a smaller type, or kept for several steps
regions.py    how long a job computes with regions
by_parameter.py   the same where gradients share buffers
computing.py  what passes that change the model have learned
region_changes.py     what a change of regions is expected to bring
memory_limit.py       which jobs fit a limit of memory, and what makes one fit that does not
theorems.py, serial_link.py, serial_backward.py   dPRO's theorems, and the link that they speak of
learning.py   which passes can take part, and what they must know
evaluate.py   how long an iteration of a changed job takes, and what its time goes to
critical_path.py  what it consists of
fold.py       two ranks in place of many
search.py     which moves to make
compression.py, compressing_costs.py  compresses what was found, and what that costs on this host
resume.py     goes on from an earlier search
trials.py     the best candidates, run once each
would_add.py  what passes that are not allowed would add
explanation.py    why moves were made, by pass and by theorem
outcome.py    what was found: prediction, interval, bound, decisions
uncertainty.py        how far a measured gain may be from the predicted one
plain.py, lanes.py    the outcome as data for its page, and what roles did as lanes of pictures
apply.py      runs the recorded command without and with it, in turn
rounds.py     keeps the runs of apply that have finished
"""
