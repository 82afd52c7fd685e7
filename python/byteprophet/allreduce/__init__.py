"""Training without servers: how ranks find each other, and what they exchange in which order.

``mesh`` connects the ranks; the rest plans: which gradients travel together, in which order their
halves go over the link, and how long an iteration then takes. The runtimes are in
``byteprophet.torch``.
"""
