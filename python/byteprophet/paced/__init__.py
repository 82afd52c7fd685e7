"""The paced training job: it sends a workload's real bytes, with timed waits in place of compute.

It is a training script like any other, and uses what scripts use.

    worker.py             the worker process of a job under BytePS            (needs torch, a front)
    worker_config.py      its configuration file, and the results file that it writes
    model.py              a workload as a ``torch.nn.Module``                 (needs torch)
    pacing.py             timed waits without drift
    real_time.py          real-time priority for the thread that waits
    making.py             the model's gradients, made ahead of time
    gradient.py           the formulas of gradients and initial parameters
    check.py              the expected parameters after N updates
    busy.py               when the paced device was busy, from a recorded run
    collective_front.py   common code of the workers over torch.distributed, without BytePS:
    ddp_worker.py fsdp2_worker.py wfbp_worker.py collective_worker.py
    collective_settings.py   the settings of their runtimes

This module imports neither torch nor a front.
"""
