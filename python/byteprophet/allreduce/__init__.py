"""Training without servers: the rendezvous of ranks, and the plan of their communication.

``mesh`` connects the ranks. The other modules plan which gradients form a bucket, in which order
the buckets' reduce-scatters and all-gathers use the link, and predict how long an iteration takes.
The runtimes are in ``byteprophet.torch``.
"""
