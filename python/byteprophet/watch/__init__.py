"""The live view of a job: what its run directory says while it runs, and after that.

    live/*.json control.jsonl tuning.jsonl logs/ summary.json profile.json ──► RunWatch ──► state
    state ──► page (server.py), terminal (terminal.py), Prometheus (metrics.py)

    live_file.py   a worker's status file, checked
    tail.py        what was appended to a file since the last look
    plans.py       the controller's and the tuner's logs, as plans and estimates
    logged.py      warnings in the roles' logs
    pacing.py      iterations of all workers; who comes last
    rates.py       a worker's rates, from two of its status files
    bound.py       the shortest iteration that any schedule can reach
    feed.py        what has happened: plans, stragglers, workers that left
    run_watch.py   looks at a run directory; state.py: what one look has found, as plain data
    sources.py     a run directory, or another viewer, as a source of states
    server.py      serves page, state and metrics on loopback, to who has the token
    page/          the page; grafana.json, a dashboard for the metrics

Nothing in a run directory is trusted. A file that is damaged, half-written or too large is a line
under ``problems`` of the state, and everything else is shown.

Threads: only ``server.py`` has several; one lock there covers whatever looks at the run.
"""
