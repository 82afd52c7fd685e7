"""The controller: one process per job that makes plans for all workers from their reports.

    worker process                                        controller process (one thread)
    observer ──take()──► Client ──DEALER──── CURVE ────ROUTER── Door ── Coordinator ── control.jsonl
    plug-in ◄─stage────  (its thread)                            │            └── solve (plan.py)
                                                              Refusals

    messages.py     the messages that are allowed in each direction: pydantic models, JSON, limits
    keys.py         identities: CURVE keys in files that only their user can read
    sockets.py      options that both ends share
    door.py         the controller's socket, which refuses strangers
    members.py      the state of each worker
    adoption.py     one plan from its issue to its outcome
    coordinator.py  decides: messages in, messages and events out; no socket, no clock, no file
    issue.py        issues plans, and repeats them for workers that were late
    plan.py         profiles and bandwidths in, plan out: a pure function
    arrival_order.py  whether gradients go as they come, because the processor is the limit
    host_need.py    what cores usually need for an iteration, and how much that varies
    log.py          writes and reads control.jsonl
    refusals.py     counts and logs refused messages
    server.py       the process
    client.py       the worker's end
    line.py         the worker's connection
    iterations.py   durations of iterations, from their start times

**Permissions.** Every connection uses CURVE, even on loopback, where other users' processes run. A
job has two key pairs: the controller's, and one that its workers share. The controller accepts only
clients with the workers' key, and a worker talks only to a server with the controller's key. All
others fail in the handshake, so no other plan can arrive. After the handshake, only the models of
``messages.py`` are accepted: ``Inbound`` from worker to controller, ``Outbound`` the other way.

**Adopting a plan.** The controller picks an iteration that no worker has begun yet: the largest
reported one plus a margin of time. Each worker hands the plan to the plug-in, which checks it,
applies it in OnIteration at that count, and answers. A worker that gets the plan too late refuses
it. The controller then issues the plan again, with a new number and a wider margin. Iterations are
those since the ranks started or resumed the job together, so a number means the same one on all of
them, whatever their processes did before (``client.py``, ``members.py``). No barrier is
needed, because a policy only decides when bytes leave: workers with different policies get the same
sums, perhaps later. Partition sizes, which must agree, are never part of a plan.

**Failures.**
    controller ends            workers keep their plan and look for the controller
    controller comes (back)    asks unknown workers to say hello; gets their profiles, samples and
                               the number of the last plan; continues counting from there
    worker ends or is silent   counts as left; its reports are kept until it is back
    worker too late            plan withdrawn, and issued up to ``adoption.MOST_ATTEMPTS`` times
    no plan can be made        logged with the reason; tried again when something changes
    plan refused by plug-in    logged; not repeated until something changes
    wrong keys, no keys        the handshake fails: counted, logged
    garbage, wrong schema,     refused, counted, one line in the log per reason and period; a
    other job, too large       message that is far too large ends the connection before it is read
    impostor on our port       the workers' handshakes fail: counted, later told to the controller
    log cannot be written      one warning, the job goes on
"""
