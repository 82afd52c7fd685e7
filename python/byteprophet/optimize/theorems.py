"""When fusing two neighbours never makes a job slower: dPRO's Theorems 1 to 3, repaired.

Source: Hu et al., dPRO (MLSys 2022), section 5.1. The model there: one device computes operations
one after the other, and one link synchronises their gradients one after the other, in the same
order. For operation n, in the paper's letters:

    p(n)   when operation n ends                            ready
    t(s)   how long the link is busy with s bytes           sync
    q(n) = max(q(n-1), p(n)) + t(s(n))                      synced

An operation without gradients has t = 0. Operation n's layer comes earlier in the forward pass than
operation n-1's, so whoever has waited for q(n) needs not wait for q(n-1). Fusing the operations
n-1 and n makes p(n) earlier by ``saved_ns`` and p(n-1) equal to it. Fusing their gradients sends
both at p(n), as one message. A job is not slower if q(n) and all later p are not later.

What is wrong in the paper's wording, with counter-examples, is printed by
``experiments/theorems.py``, which also replays these functions' conditions on random graphs. They
hold for one link in FIFO order. They do not hold where urgent gradients overtake others, or where a
second message begins before the first one has ended. There a replay has to decide.

All times are integer nanoseconds, from any common origin.
"""

from __future__ import annotations

OPERATION_FUSION, TENSOR_FUSION, BOTH = "Theorem 1", "Theorem 2", "Theorem 3"
"""What reports call them."""


def operation_fusion_gain_ns(
    *,
    synced_before_ns: int,
    ready_second_ns: int,
    synced_second_ns: int,
    saved_ns: int,
    sync_first_ns: int,
    sync_second_ns: int,
) -> int:
    """How much earlier q(n) is if operations n-1 and n are fused (Theorem 1); negative: later.

    The gradients stay two messages. The paper's condition, ``sync_first_ns <= saved_ns``, is
    sufficient. But it says "otherwise slower", which is wrong: the link may be busy until the fused
    operation ends, or operation n may take longer to be ready than the first message takes.

    Args:
        synced_before_ns: q(n-2); 0 if nothing was sent before.
        ready_second_ns: p(n).
        synced_second_ns: q(n).
        saved_ns: the time of both operations minus that of the fused one.
        sync_first_ns: t(s(n-1)).
        sync_second_ns: t(s(n)).
    """
    fused_ns = max(synced_before_ns, ready_second_ns - saved_ns) + sync_first_ns + sync_second_ns
    return synced_second_ns - fused_ns


def fuses_operations(
    gain_ns: int, saved_ns: int, *, link_slack_ns: int = 0, compute_slack_ns: int = 0
) -> bool:
    """Whether fusing two operations does not make the job slower (Theorem 1, repaired).

    The paper compares q(n) only. But all later operations move by ``saved_ns``, too: where these
    are what the job waits for, fusing helps although q(n) is later, and a fused operation that is
    slower than its parts harms although q(n) is not later. With exact slacks the condition is
    necessary, too.

    Args:
        gain_ns: from ``operation_fusion_gain_ns``.
        saved_ns: the time of both operations minus that of the fused one.
        link_slack_ns: by how much q(n) may be later without delaying the end of the job.
        compute_slack_ns: by how much all later operations may be later without that.
    """
    sooner_ns = sooner_by_operation_fusion_ns(
        gain_ns, saved_ns, link_slack_ns=link_slack_ns, compute_slack_ns=compute_slack_ns
    )
    return sooner_ns >= 0


def sooner_by_operation_fusion_ns(
    gain_ns: int, saved_ns: int, *, link_slack_ns: int, compute_slack_ns: int
) -> int:
    """How much sooner the job ends if two operations are fused; negative: later.

    Takes what ``fuses_operations`` takes. The job ends with what follows q(n) on the link, or with
    what follows the later operations. The slacks say how long before its end either is through.
    """
    return min(gain_ns + link_slack_ns, saved_ns + compute_slack_ns)


def tensor_fusion_gain_ns(
    *, synced_before_ns: int, ready_second_ns: int, synced_second_ns: int, sync_fused_ns: int
) -> int:
    """How much earlier q(n) is if gradients n-1 and n are fused (Theorem 2); negative: later.

    The job is not slower if this is not negative, and it is not faster unless this is positive. The
    paper compares q(n-1) with ``p(n) + t(s(n-1) + s(n)) - t(s(n))`` and forgets that the fused
    message, too, waits for q(n-2). Its condition then holds wherever the link is far behind, even
    if one message takes longer than two.

    Args:
        synced_before_ns: q(n-2); 0 if nothing was sent before.
        ready_second_ns: p(n).
        synced_second_ns: q(n).
        sync_fused_ns: t(s(n-1) + s(n)).
    """
    return synced_second_ns - max(synced_before_ns, ready_second_ns) - sync_fused_ns


def fuses_operations_of_fused_gradients(saved_ns: int) -> bool:
    """Whether to fuse two operations whose gradients are one message (Theorem 3, first half).

    The paper says always. A fused operation may be slower than its parts, so that does not hold.
    """
    return saved_ns >= 0


def fuses_gradients_of_fused_operations(
    *, sync_first_ns: int, sync_second_ns: int, sync_fused_ns: int
) -> bool:
    """Whether to fuse the gradients of two fused operations (Theorem 3, second half).

    The paper says always. It holds if one message does not take longer than two.
    """
    return sync_fused_ns <= sync_first_ns + sync_second_ns
