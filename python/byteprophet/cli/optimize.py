"""``byteprophet optimize``: a faster strategy for a recorded job, and its gain foretold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from byteprophet.cli.given import refuse_given
from byteprophet.cli.lists import split
from byteprophet.cli.optimize_tables import applied_table, outcome_table
from byteprophet.cli.runs import RUN_HELP, run_meant
from byteprophet.cli.sizes import parse_size
from byteprophet.cli.targets import check_targets
from byteprophet.errors import UserError
from byteprophet.job.strategy_file import strategy_path
from byteprophet.measure.run import Run
from byteprophet.optimize.apply import OPTIMISED, Applied, apply, check_repeatable
from byteprophet.optimize.compression import check_may_compress, compressed_where_faster
from byteprophet.optimize.evaluate import Evaluator
from byteprophet.optimize.lanes import last_iterations, one_iteration
from byteprophet.optimize.learning import learn
from byteprophet.optimize.moves import OnlyWithLimit, effect_in
from byteprophet.optimize.other_transport import (
    TRANSPORTS,
    measure_others,
    measure_sharded,
    transports_of,
)
from byteprophet.optimize.outcome import Outcome, corrections_of, outcome_of, starts_of
from byteprophet.optimize.passes import load_passes, not_allowed, without_leave
from byteprophet.optimize.plain import plain
from byteprophet.optimize.recorded import digest_of_config, given_of, measure_changeable
from byteprophet.optimize.resume import Resume, decisions_beside
from byteprophet.optimize.search import Candidate, search
from byteprophet.optimize.trials import Trial, try_candidates, worth_trying
from byteprophet.optimize.uncertainty import ROUNDS
from byteprophet.optimize.would_add import SHARE, would_add
from byteprophet.report.console import progress_of, table_console
from byteprophet.report.page import write_optimization
from byteprophet.runtime_settings import DEFAULT_REGION_BUDGET_S
from byteprophet.strategy.compressed import compressed
from byteprophet.timeline.perfetto_lanes import write_lanes
from byteprophet.whole_files import make_directory, write_whole

COMPRESS = "--compress"
PAGE, BEFORE, AFTER = "optimization.html", "before.json", "after.json"
MEASURED = "rounds.json"
"""Files that are written beside the strategy."""

_SEARCH_S = 60.0
_DIGITS = 12  # of the digest of a job, in the name of what was measured of it
_HELP = """Find a faster strategy for a recorded job.

The run must have been recorded (--record). The search replays it with other buckets, runtimes,
policies, partition sizes and servers. With --allow compile, it also measures compiled regions of
the model and uses them; without it, --would-add measures them and says what they would add. With
--memory-budget, it uses only what fits, and recomputes modules if it must. With --compress RULE,
gradients may travel compressed in the end (docs/compression.md). It says what the best strategy
would gain, and saves it as strategy.json, which byteprophet run --strategy applies. With --apply,
the recorded command runs again, without and with the strategy in turn, and what was predicted
stands beside what was measured. With --trials, the command first runs once under each other
transport (with servers, or without any, or under DistributedDataParallel's exchange); the best
candidates of several runtimes or policies run once each, and the job decides. The same command goes
on where an earlier one was stopped. Beside the strategy it writes optimization.html, a page that
explains all of this and needs no network, and before.json and after.json, which show the two
replayed jobs in https://ui.perfetto.dev.

Whatever runs the command again, trains: --apply, --trials, --memory-budget, --allow compile, bf16
and --would-add. A script that loads and saves a checkpoint goes on from it and replaces it, so give
it another place first.

Example: byteprophet optimize runs/20261126T014735Z-dear

Example: byteprophet optimize runs/20261126T014735Z-dear --allow compile --trials 3

Example: byteprophet optimize runs/20261126T014735Z-dear --memory-budget 2GiB

Example: byteprophet optimize runs/20261126T014735Z-dear --compress "*.weight=topk,k=0.01"

Example: byteprophet optimize runs/20261126T014735Z-dear --pass tensor-fusion --apply --rounds 3
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("optimize", help=_HELP)(optimize)


def optimize(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(help=RUN_HELP)],
    passes: Annotated[
        str | None, typer.Option("--pass", help="Only these passes, separated by commas.")
    ] = None,
    allow: Annotated[
        str, typer.Option(help="Passes that may change results, separated by commas.")
    ] = "",
    compress: Annotated[
        list[str] | None,
        typer.Option(
            COMPRESS,
            metavar="RULE",
            help="Compress gradients by this rule, PATTERN=TYPE,NAME=VALUE,..., if that is faster.",
        ),
    ] = None,
    budget_s: Annotated[
        float | None,
        typer.Option(
            help="Seconds that the search may take, and as many to measure regions before it.",
            show_default=f"{_SEARCH_S:g}; {DEFAULT_REGION_BUDGET_S:g} to measure regions",
        ),
    ] = None,
    memory_budget: Annotated[
        str | None, typer.Option(help="What tensors on a rank may take at most, such as 8GiB.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random draws of the search.")] = 0,
    trials: Annotated[
        int, typer.Option(help="Run the best candidates of so many runtimes or policies once.")
    ] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Where all files are saved; default: in optimized/.")
    ] = None,
    would: Annotated[
        bool,
        typer.Option("--would-add", help="Measure what passes would add that are not allowed."),
    ] = False,
    applies: Annotated[
        bool, typer.Option("--apply", help="Run the recorded command without and with it.")
    ] = False,
    rounds: Annotated[
        int, typer.Option(help="With --apply: runs of either kind, in turn.")
    ] = ROUNDS,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Save the result as JSON.")
    ] = None,
) -> int:
    """See _HELP."""
    if budget_s is not None and not 0 < budget_s < 1e6:
        raise UserError(f"--budget-s {budget_s}: must be more than 0 and less than 1e6 seconds")
    measuring_s = DEFAULT_REGION_BUDGET_S if budget_s is None else budget_s
    search_s = _SEARCH_S if budget_s is None else budget_s
    if trials < 0:
        raise UserError(f"--trials {trials}: must be at least 0")
    if not applies:
        refuse_given(context, ("rounds",), "needs --apply")
    if rounds < 1:
        raise UserError(f"--rounds {rounds}: must be at least 1")
    budget_bytes = None if memory_budget is None else parse_size(memory_budget, "--memory-budget")
    rules = compress or []
    allowed = split(allow, "--allow") if allow else []
    chosen = load_passes(None if passes is None else split(passes, "--pass"), allowed)
    if would and passes is not None:
        raise UserError("--would-add: looks at all passes: leave --pass out")
    others = not_allowed(allowed) if passes is None else []
    if budget_bytes is None and passes is None:
        chosen = [each for each in chosen if not isinstance(each, OnlyWithLimit)]
    run = run_meant(run)
    recorded = Run(run)
    for option, repeats in (("--trials", trials), ("--apply", applies)):
        if repeats:
            check_repeatable(recorded.config, option)
    measured = measure_changeable(recorded)
    unasked = without_leave(chosen, measured.job, allowed)
    if unasked and passes is not None:
        effect = effect_in(unasked[0], measured.job).value
        raise UserError(f"pass {unasked[0].name!r}: {effect} in this job: allow it with --allow")
    chosen = [each for each in chosen if each not in unasked]
    others += unasked
    if rules:
        check_may_compress(recorded, measured.job, COMPRESS, budget_bytes)
        compressed(measured.job, rules, COMPRESS)  # says what is wrong with them before the search
    say = progress_of("optimize")

    def progress(best: Candidate, spent: float) -> None:
        say(f"{spent:.0%} of the budget: {best.iteration_ns / 1e6:.1f} ms")
        resume.keep(best, measured.job)

    directory = out or Path("optimized") / run.resolve().name
    make_directory(directory)
    kept = strategy_path(directory)
    files = {f"--out's {name}": directory / name for name in (PAGE, BEFORE, AFTER, MEASURED)}
    given = given_of(recorded.config)
    check_targets(
        {
            **files,
            "the strategy": kept,
            "its decisions": decisions_beside(kept),
            "--json": json_file,
        },
        [run] if given is None else [run, given],
    )
    resume = Resume(directory)
    resume.refuse_others()
    transports = transports_of(recorded, measured.job, chosen)
    others_ran = measure_others(
        recorded,
        measured.job,
        transports if trials else (),
        chosen,
        directory / "other-transport",
        say,
    )
    moved = [each.measured for each in others_ran]
    jobs = [measured.job, *(each.job for each in moved)]
    runs = [(recorded, measured.job), *((each.run, each.measured.job) for each in others_ran)]
    learned = learn(
        runs,
        chosen,
        asked=passes is not None,
        budget_bytes=budget_bytes,
        directory=directory / "regions" / digest_of_config(recorded.config)[:_DIGITS],
        say=say,
        measuring_s=measuring_s,
        others=others,
        measures=would,
        sharded=lambda able: measure_sharded(
            recorded, measured.job, able, directory / "other-transport", say
        ),
    )
    if learned.sharded is not None:
        moved.append(learned.sharded.measured)
        jobs.append(learned.sharded.measured.job)
    corrections = corrections_of(measured, *moved) if moved else None
    chosen = learned.passes
    share = SHARE if any(each.name not in learned.left_out for each in others) else 0.0
    found = search(
        measured.job,
        chosen,
        budget_s=(1 - share) * search_s,
        seed=seed,
        left=resume.left(jobs, chosen, asked=passes is not None),
        limit=learned.limit,
        progress=progress,
        evaluator=Evaluator(corrections=corrections),
    )
    plainly = found
    if rules:
        found = compressed_where_faster(
            found, lambda job: compressed(job, rules, COMPRESS), corrections
        )
    tried: list[Trial] = []
    if trials:
        best = worth_trying(found.families, trials)
        starts = starts_of(moved, found.start, learned.limit)
        tried = try_candidates(
            recorded.config,
            measured.job,
            best,
            directory / "trials",
            say,
            starts,
            start_fits=found.start_fits,
        )
    outcome = outcome_of(
        measured,
        found,
        tried[0] if tried else None,
        learned.costs,
        learned.limit,
        moved,
        rounds,
    )
    saved = resume.end(outcome.used if outcome.gains else None, outcome.moves)
    additions = would_add(
        plainly.best.job if outcome.job.strategy.compressors else outcome.job,
        chosen,
        others,
        learned.left_out,
        budget_s=share * search_s,
        seed=seed,
        limit=learned.limit,
        corrections=corrections,
        say=say,
    )
    data = outcome.as_json(None if saved is None else str(saved), [*allowed, *rules])
    data["would_add"] = [each.as_json() for each in additions]
    if tried:
        data["trials"] = [each.as_json(found.start.iteration_ns) for each in tried]

    def save(applied: Applied | None) -> None:
        told = plain(run.resolve().name, outcome, chosen, additions, tried, applied)
        _write_page(directory, outcome, told)
        if json_file is not None:
            measured_too = {} if applied is None else {"measured": applied.as_json()}
            write_whole(json_file, json.dumps(data | measured_too, indent=1) + "\n")

    _write_traces(directory, outcome)
    save(None)  # a run of --apply may fail
    console = table_console()
    console.print(outcome_table(outcome))
    if saved is None:
        console.print("Nothing better was found: the job stays as it was recorded.")
    else:
        console.print(f"saved: {saved}", soft_wrap=True)
        if applies:
            strategies = {OPTIMISED: (outcome.used, saved)}
            applied = apply(
                recorded.config, strategies, directory / "runs", rounds, say, directory / MEASURED
            )
            save(applied)
            console.print(applied_table(outcome, applied))
    if not trials and transports:
        there = " or ".join(TRANSPORTS[each] for each in transports)
        console.print(f"not looked at without --trials: the job {there}")
    for each in additions:
        console.print(each.text, soft_wrap=True)
    for what, file in (("page", PAGE), ("trace before", BEFORE), ("trace after", AFTER)):
        console.print(f"{what}: {directory / file}", soft_wrap=True)
    return 0


def _write_traces(directory: Path, outcome: Outcome) -> None:
    for played, name in ((outcome.before, BEFORE), (outcome.after, AFTER)):
        write_lanes(directory / name, last_iterations(played))


def _write_page(directory: Path, outcome: Outcome, data: dict[str, Any]) -> None:
    both = outcome.before, outcome.after
    before, after = (one_iteration(played, outcome.typical) for played in both)
    write_optimization(directory / PAGE, data, before, after)
