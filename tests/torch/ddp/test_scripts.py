"""Real jobs: whoever exchanges the gradients of DistributedDataParallel, the bits are the same.

``experiments/ddp_own_tests.py`` runs all scripts under every sync; here, a few run in one job each.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from byteprophet.job.strategy import BYTEPS, DEAR_PLANNED
from byteprophet.launcher import JobSpec, run_job

from ...thorough import THOROUGH, asked, pairs

pytestmark = [pytest.mark.job, pytest.mark.timeout(600)]
SCRIPTS = Path(__file__).with_name("scripts") / "run.py"
OURS = (
    "adamw_and_its_state",
    "clip_by_norm",
    "gradients_are_read_on_one_rank",
    "update_by_hand",
    "two_backward_passes_per_step_without_no_sync",
    "accumulation_with_no_sync",
    "grad_scaler_and_autocast",
    "two_optimizers_of_one_model",
    "an_optimizer_is_replaced",
    "an_optimizer_is_replaced_within_an_iteration",
    "optimizers_that_end_with_their_functions",
    "a_group_is_added",
    "swa_and_ema_of_torch",
    "rank_0_saves_and_all_resume",
    "layers_are_unfrozen_and_wrapped_again",
    "unused_on_one_rank",
    "a_missing_gradient_is_an_error",
    "static_graph_and_a_layer_checkpointed_twice",
    "one_optimizer_of_two_models",
    "sharpness_aware_wrapper",
)
PLAIN = (
    "uneven_inputs_with_join",
    "communication_hook_in_the_middle",
    "zero_redundancy_optimizer",
    "lbfgs",
    "sparse_embedding",
)
MORE = (
    "data_from_worker_processes",
    "anomalies_and_profiles",
    "rates_changed_by_hand",
    "weights_changed_by_hand",
    "many_tensors_read_at_once",
    "gradients_of_several_parameters_in_one_memory",
    "hooks_on_gradients",
    "hooks_on_backward_of_modules",
    "hooks_on_forward_read_weights",
    "weights_are_parametrized_and_pruned",
    "backward_twice_through_one_graph",
    "gradients_by_autograd_grad",
    "own_optimizer_class_that_evaluates_twice",
    "second_order_by_autograd_grad",
    "a_model_beside_it_is_not_wrapped",
    "zero_grad_in_odd_places",
    "steps_without_backward",
    "forwards_without_backward",
    "copies_are_trained",
    "wrapper_and_optimizer_are_saved_whole",
    "the_wrapper_is_deleted",
    "parameters_are_set_from_a_vector",
    "a_call_with_other_parameters",
    "double_precision",
    "half_precision",
    "parameters_of_several_types",
    "channels_last",
    "whole_iterations_are_compiled",
    "updates_of_many_parameters_at_once",
    "grad_scaler_and_a_fused_optimizer",
    "synchronised_batch_norm",
    "collectives_of_the_script_in_between",
    "a_group_of_the_same_ranks",
    "a_group_of_some_ranks",
    "sharded_beside_it",
    "tensor_parallel_beside_it",
    "the_group_is_destroyed_and_made_again",
)
"""These run under one sync only, to save time. The others share all; ``--thorough``: under each."""
MORE_PLAIN = (
    "complex_parameters",
    "sync_batch_norm_is_refused_on_cpus",
    "communication_hook_between_forward_and_backward",
    "all_reduce_of_some_parameters_is_delayed",
    "hooks_after_gradients",
)
SYNCS = ("allreduce", DEAR_PLANNED, BYTEPS)
Rows = dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def job(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[list[Rows], str]]:
    """What each rank wrote under a sync, and what rank 0 printed; each job runs once."""

    def scripts_under(sync: str) -> list[str]:
        """What runs in the job of a sync, or of none."""
        if sync == "":
            return [*OURS, *PLAIN, *MORE, *MORE_PLAIN]
        needed = [each["script"] for each in asked(request, sync=sync)]
        if sync == DEAR_PLANNED:  # what it says of these is tested, too
            needed = [*dict.fromkeys((*needed, *PLAIN, *MORE, *MORE_PLAIN))]
        return needed

    @functools.cache
    def run(sync: str) -> tuple[list[Rows], str]:
        folder = tmp_path_factory.mktemp("job")
        lines: list[str] = []
        spec = JobSpec(
            command=(sys.executable, str(SCRIPTS), str(folder), *scripts_under(sync)),
            run_directory=folder / "run",
            servers=int(sync == BYTEPS),
            ranks=sync == BYTEPS,
            environment={"BYTEPROPHET_SYNC": sync, "BYTEPROPHET_TIMEOUT_S": "120"},
            timeout_s=500.0,
        )
        run_job(spec, lambda role, line: lines.append(f"{role}: {line}")).check()
        files = [folder / f"rank-{rank}.jsonl" for rank in range(2)]
        rows = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
        return [{row["script"]: row for row in own} for own in rows], "\n".join(lines)

    return run


@pytest.mark.parametrize(
    ("script", "sync"),
    [
        *pairs(OURS, SYNCS),
        *((script, DEAR_PLANNED) for script in (*PLAIN, *MORE_PLAIN, *MORE)),
        *(pytest.param(each, sync, marks=THOROUGH) for each in PLAIN for sync in SYNCS[::2]),
    ],
)
def test_same_bits(job: Callable[[str], tuple[list[Rows], str]], script: str, sync: str) -> None:
    before, after = job("")[0], job(sync)[0]
    assert all("error" not in row[script] for row in (*before, *after))
    assert [row[script]["digest"] for row in after] == [row[script]["digest"] for row in before]
    assert {row[script]["by"] for row in after} == {"ours" if script in (*OURS, *MORE) else "ddp"}


def test_one_line_says_why_a_model_keeps_its_own_exchange(
    job: Callable[[str], tuple[list[Rows], str]],
) -> None:
    said = job(DEAR_PLANNED)[1]
    # Two scripts have communication hooks: one of a single model, one of two.
    models = {"join()": 1, "communication hook": 3, "Zero": 1, "LBFGS": 1, "sparse": 1}
    for reason, expected in models.items():
        lines = [line for line in said.splitlines() if "itself: " in line and reason in line]
        assert len(lines) == expected, (reason, said)
    copies = [line for line in said.splitlines() if "itself: it is a copy" in line]
    assert len(copies) == 2  # by deepcopy in one script, by torch.load in another
    assert "itself: " not in job("")[1]


def test_one_line_says_whose_exchange_it_is(job: Callable[[str], tuple[list[Rows], str]]) -> None:
    line = f"byteprophet: {DEAR_PLANNED} exchanges the gradients of DistributedDataParallel"
    assert job(DEAR_PLANNED)[1].count(line) == 1
    assert "exchanges the gradients of" not in job("")[1]
