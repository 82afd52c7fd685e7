"""What ``ddp_torch_tests.py`` makes of the outcomes of tests."""

from __future__ import annotations

from ddp_torch_tests import BOTH, DDP, NOBODY, OURS, exchanged, summary

_LINE = "byteprophet: warning: DistributedDataParallel of Net exchanges its gradients itself: "
_FRONT = "a front of byteprophet was made\n"


def test_ranks_print_who_exchanges() -> None:
    assert exchanged("") == {"by": NOBODY, "said": ""}
    assert exchanged(2 * _FRONT) == {"by": OURS, "said": ""}
    hook = f"{_LINE}it has a communication hook\n"
    assert exchanged(hook + hook) == {"by": DDP, "said": "it has a communication hook"}
    both = exchanged(f"{_FRONT}{hook}{_LINE}it is a copy\n")
    assert both == {"by": BOTH, "said": "it has a communication hook; it is a copy"}


def test_a_failure_is_an_exception_only_if_its_reason_is_known() -> None:
    passed = {"status": "passed", "by": OURS, "said": ""}
    hooked = {"status": "passed", "by": DDP, "said": "it has a communication hook"}
    failed = {"status": "failed: AssertionError: 1 != 2", "by": OURS, "said": ""}
    skipped = {"status": "skipped: Need GPUs", "by": NOBODY, "said": ""}
    logging = "test_ddp_logging_data_cpu"
    plain = {logging: passed, "test_one": passed, "test_two": passed, "test_gpu": skipped}
    lines, unexplained = summary({3: {"": plain, "dear": {logging: failed, "test_one": hooked}}})
    assert unexplained == 1
    assert lines[0] == (
        "3 ranks, without byteprophet: 4 tests, 3 passed, 1 skipped (most of them need GPUs), "
        "0 failed"
    )
    assert lines[1] == "3 ranks, dear: test_two: no result"
    assert lines[2] == "by DDP, 1 x: test_one: it has a communication hook"
    assert lines[3].startswith(f"exception, 1 x: {logging} asks for the times of backward")
    assert len(lines) == 4
