"""Creates the observers that this process' environment asks for, and ends them.

process.py      the functions that a framework's front calls when it joins and leaves a job
job.py          the data about the process that the makers of consumers get
consumers.py    the kinds of consumers; each has a function that makes it:
profiling.py    the profiler, and the profile that a job starts from
monitoring.py   the network monitor, and the variables that switch it on
controlling.py  the controller's client; controller_address.py: the variable that asks for it
"""
