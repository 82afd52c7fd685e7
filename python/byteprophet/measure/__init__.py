"""Measures a recorded run and returns it as a ``Job``.

run.py          a run directory, read and aligned once
servers.py      a job with servers: the times of its workers' computation
tensors.py, settings.py  the tensors that were sent; settings that changed during the run
keys.py         how tensors were cut, and which servers summed them
parameters.py   the parameters of a job with servers one by one, also those that share buffers
network.py, sending.py   the network, and the threads that send
stock.py        the transfers of workers that recorded none
all_reduce.py   a job without servers
collectives.py  one whose ranks exchange shards by priority; computation.py its computation
barriered.py    one that uses gloo's collectives
links.py        the speed of its links
waits.py        when training threads waited
"""
