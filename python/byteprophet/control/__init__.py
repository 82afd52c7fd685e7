"""The controller: one process per job that turns what the workers see into plans for all of them.

    worker process                                        controller process (one thread)
    observer ──take()──► Client ──DEALER──── CURVE ────ROUTER── Door ── Coordinator ── control.jsonl
    plug-in ◄─stage────  (its thread)                            │            └── solve (plan.py)
                                                              Refusals

    messages.py     what may be said, by whom: pydantic models, JSON, limits
    keys.py         who is who: CURVE keys in files that only their user can read
    sockets.py      options that both ends share
    door.py         the controller's socket, and what it keeps out
    members.py      what is known of each worker
    adoption.py     one plan from its issue to its outcome
    coordinator.py  decides: messages in, messages and events out; no socket, no clock, no file
    fluid.py        strict priority on one link in the fluid limit
    plan.py         profiles and bandwidths in, plan out: a pure function
    log.py          control.jsonl, written and read
    server.py       the process
    client.py       the worker's end

**Who may say what.** Every connection is CURVE, on loopback too: other users' processes are there.
A job has two key pairs, the controller's and one that its workers share. The controller lets in who
has the workers' key, a worker talks to who has the controller's; nobody else gets past the
handshake, so nobody else's plan can arrive. Inside, only the models of ``messages.py`` count:
worker to controller ``Inbound``, controller to worker ``Outbound``.

**Adopting a plan.** The controller picks an iteration that all workers have yet to begin: the
largest reported plus a margin of time. Each worker hands the plan to the plug-in, which checks it
and applies it in OnIteration at that count, and answers. Who is asked too late refuses; the
controller then issues the plan anew, with a new number and a wider margin. There is no barrier and
none is needed: a policy decides only when bytes leave. Workers whose policies differ for a while
get the same sums, perhaps later. Partition sizes, which must agree, are never part of a plan.

**Failures.**
    controller ends            workers keep their plan, and look for the controller
    controller comes (back)    asks who it does not know to say hello, gets profile, samples, number
                               of the last plan; goes on counting from there
    worker ends or is silent   counts as left; what it reported stays until it is back
    worker too late            plan withdrawn, issued anew up to ``adoption.MOST_ATTEMPTS`` times
    no plan can be made        logged with the reason; tried again when something changes
    plan refused by plug-in    logged; not repeated until something changes
    wrong keys, no keys        ends in the handshake: counted, logged
    garbage, wrong schema,     refused, counted, one line in the log per reason and period;
    other job, too large       what is far too large ends the connection before it is read
    impostor on our port       the workers' handshake fails: counted, told to the controller later
    log cannot be written      one warning, the job goes on
"""
