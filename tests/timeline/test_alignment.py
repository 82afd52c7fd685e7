"""Clocks of known networks are found, and the truth is always within the stated interval."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from byteprophet.errors import UserError
from byteprophet.timeline.alignment import TOLERANCE_NS, Evidence, align

from ..thorough import examples
from .true_clocks import Times, TrueClock, errors, messages, offset_between

SECOND = 10**9
ROUNDING_NS = 4


def ints(values: object) -> Times:
    return np.array(values, np.int64)


@st.composite
def networks(draw: st.DrawFn) -> tuple[dict[str, TrueClock], list[Evidence], Times]:
    """Workers and servers, each pair with transfers both ways, some of which never queue.

    Offsets to 50 ms, drifts to 50 ppm, delays of 20 to 100 µs and exponential queues on top; the
    first, the last and every tenth transfer meet an empty queue.
    """
    machines = draw(st.integers(2, 6))
    workers = draw(st.integers(1, machines - 1))
    names = [f"worker-{i}" for i in range(workers)]
    names += [f"server-{i}" for i in range(machines - workers)]
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    same = draw(st.booleans()) and draw(st.booleans())
    origin = draw(st.sampled_from([0, 1_750_000_000 * SECOND]))
    clocks = {
        name: TrueClock(
            origin + (0 if same else int(rng.integers(-50_000_000, 50_000_001))),
            0 if same else int(rng.integers(-50_000, 50_001)),
        )
        for name in names
    }
    length = draw(st.sampled_from([SECOND // 10, SECOND, 60 * SECOND, 600 * SECOND]))
    evidence = []
    for worker in names[:workers]:
        for server in names[workers:]:
            for a, b in ((worker, server), (server, worker)):
                count = draw(st.integers(2, 120))
                sent = np.sort(rng.integers(0, length, count))
                sent[[0, -1]] = 0, length
                queue = rng.exponential(draw(st.sampled_from([1e4, 1e6, 2e7])), count)
                queue[::10] = queue[-1] = 0
                delay = rng.integers(20_000, 100_001) + queue.astype(np.int64)
                sizes = rng.choice([0, 4096, 2**22], count) if draw(st.booleans()) else None
                evidence.append(messages(a, b, clocks, sent, delay, size_bytes=sizes))
    return clocks, evidence, np.linspace(0, length, 21).astype(np.int64)


@settings(max_examples=examples(15, 60))
@given(networks())
def test_clocks_are_found(case: tuple[dict[str, TrueClock], list[Evidence], Times]) -> None:
    clocks, evidence, times = case
    alignment = align(list(clocks), evidence)
    assert not alignment.contradictions
    home = clocks[alignment.reference]
    for name, error in errors(alignment, clocks, times).items():
        # Fast messages at both ends bound a line: one hop is off by a one-way delay at the most.
        hops = 1 if {name[0], alignment.reference[0]} == {"w", "s"} else 2
        hops = 0 if name == alignment.reference else hops
        assert np.all(np.abs(error) <= hops * (100_000 + TOLERANCE_NS + ROUNDING_NS))
        low, high = alignment.clocks[name].interval_ns
        assert low is not None
        assert high is not None
        # Stamps are whole nanoseconds.
        assert np.all((low - 2 <= error) & (error <= high + 2))
        middle = alignment.clocks[name].intervals_ns[1]
        if times[-1] >= SECOND:  # queues make a recording longer, but its middle is in between
            assert middle[1] - middle[0] <= hops * (200_000 + 2 * TOLERANCE_NS + ROUNDING_NS)
        lows, highs = alignment.interval_at(name, clocks[name].shows(times))
        assert np.all((lows - 2 <= error) & (error <= highs + 2))
        assert np.all((low <= np.ceil(lows)) & (np.floor(highs) <= high))
        found = alignment.clocks[name]
        offset = offset_between(home, clocks[name], alignment.reference_ns)
        assert low - 2 <= found.offset_ns - offset <= high + 2 or name == alignment.reference


@settings(max_examples=examples(10, 40))
@given(
    st.integers(0, 2**32), st.integers(1, 30), st.integers(1, 30), st.sampled_from([0, 1, 60, 600])
)
def test_few_and_slow_messages_never_leave_the_interval(
    seed: int, there: int, back: int, seconds: int
) -> None:
    # No message need be fast, recordings may be an instant, and truth is asked for outside, too.
    rng = np.random.default_rng(seed)
    clocks = {
        name: TrueClock(int(rng.integers(-(10**15), 10**15)), int(rng.integers(-499_000, 499_001)))
        for name in ("a", "b", "c")
    }
    evidence = []
    for a, b in (("a", "b"), ("b", "c")):
        for x, y, count in ((a, b, there), (b, a, back)):
            sent = rng.integers(0, seconds * SECOND + 1, count)
            delay = 5_000 + rng.exponential(3e6, count).astype(np.int64)
            evidence.append(messages(x, y, clocks, sent, delay, minimum_ns=5_000))
    alignment = align(["a", "b", "c"], evidence)
    assert not alignment.contradictions
    times = np.linspace(-seconds * SECOND - 1000, 2 * seconds * SECOND + 1000, 31).astype(np.int64)
    for name, error in errors(alignment, clocks, times).items():
        low, high = alignment.interval_at(name, clocks[name].shows(times))
        assert np.all((low - 3 <= error) & (error <= high + 3))
    assert alignment.to_reference("a", times).tolist() == times.tolist()


def test_one_round_trip_is_the_classic_formula() -> None:
    # (t2 - t1 + t3 - t4) / 2 = (5300 - 1000 + 5500 - 1900) / 2, to within half of 900 - 200.
    evidence = [
        Evidence("a", "b", "ask", ints([1_000_000]), ints([5_300_000])),
        Evidence("b", "a", "answer", ints([5_500_000]), ints([1_900_000])),
    ]
    clock = align(["a", "b"], evidence, drift_limit_ppm=0, tolerance_ns=0).clocks["b"]
    assert clock.offset_ns == pytest.approx(3_950_000, abs=ROUNDING_NS)
    assert clock.drift_ppm == 0
    assert clock.interval_ns == pytest.approx((-350_000, 350_000), abs=ROUNDING_NS)
    assert (clock.causes, clock.effects) == (1, 1)
    drifting = align(["a", "b"], evidence).clocks["b"]
    assert drifting.offset_ns == pytest.approx(3_950_000, abs=1000)
    # More by the tolerance, and by 1000 ppm of the 900 µs.
    assert drifting.interval_ns[1] == pytest.approx(350_000 + TOLERANCE_NS + 900, abs=900)


def some_delays(rng: np.random.Generator, count: int, least_ns: int) -> Times:
    return least_ns + rng.exponential(1e6, count).astype(np.int64)


def two_clocks(count: int, **more: object) -> tuple[dict[str, TrueClock], list[Evidence]]:
    rng = np.random.default_rng(5)
    clocks = {"a": TrueClock(), "b": TrueClock(31_000_000, 42_000)}
    evidence = [
        messages(x, y, clocks, rng.integers(0, 30 * SECOND, count), some_delays(rng, count, 50_000))
        for x, y in (("a", "b"), ("b", "a"))
    ]
    return clocks, [replace(each, **more) for each in evidence]


def test_interval_is_that_of_all_evidence_unpruned() -> None:
    # The slow way: every message a row, its own formula for the error at the recording's ends.
    _, evidence = two_clocks(400, minimum_ns=20_000)
    alignment = align(["a", "b"], evidence, drift_limit_ppm=200)
    rows, limits = [], []
    there, back = evidence
    for cause, effect in zip(there.cause_ns, there.effect_ns, strict=True):
        rows.append([1.0, effect / SECOND])  # wrong(effect) <= effect - cause - minimum
        limits.append((effect - cause - 20_000 + TOLERANCE_NS) / 1e3)
    for cause, effect in zip(back.cause_ns, back.effect_ns, strict=True):
        rows.append([-1.0, -cause / SECOND])  # -wrong(cause) <= effect - cause - minimum
        limits.append((effect - cause - 20_000 + TOLERANCE_NS) / 1e3)
    clock = alignment.clocks["b"]
    for local, interval in zip(clock.local_ns, clock.intervals_ns, strict=True):
        aligned = int(alignment.to_reference("b", ints([local]))[0])
        for sign, stated in ((-1.0, interval[0]), (1.0, interval[1])):
            found = linprog(
                [sign, sign * local / SECOND],
                A_ub=rows,
                b_ub=limits,
                bounds=[(None, None), (-200, 200)],
            )
            assert stated is not None
            assert stated == pytest.approx(local - aligned - sign * found.fun * 1e3, abs=8)


def test_a_million_events() -> None:
    rng = np.random.default_rng(7)
    clocks = {f"w{i}": TrueClock(i * 20_000_000, -9_000 * i) for i in range(3)}
    clocks["s0"] = TrueClock(-40_000_000, 50_000)
    count = 170_000
    evidence = []
    for worker in ("w0", "w1", "w2"):
        for a, b in ((worker, "s0"), ("s0", worker)):
            sent = np.sort(rng.integers(0, 120 * SECOND, count))
            evidence.append(messages(a, b, clocks, sent, some_delays(rng, count, 60_000)))
    alignment = align(list(clocks), evidence)
    assert sum(clock.causes for clock in alignment.clocks.values()) == 6 * count
    times = np.linspace(0, 120 * SECOND, 50).astype(np.int64)
    for name, error in errors(alignment, clocks, times).items():
        assert np.all(np.abs(error) < 5_000)  # as delays are symmetric
        low, high = alignment.interval_at(name, clocks[name].shows(times))
        assert np.all((low - 2 <= error) & (error <= high + 2))
    # What comes later than a message that took the same way at the same time says nothing new.
    later = [
        replace(
            each,
            cause_ns=np.tile(each.cause_ns, 2),
            effect_ns=np.concatenate(
                [np.minimum(each.effect_ns + late, each.effect_ns.max()), each.effect_ns]
            ),
        )
        for each, late in zip(evidence, (0, 1, 7, 10**5, 10**7, 10**9), strict=True)
    ]
    clocks_again = align(list(clocks), later).clocks
    for name, clock in alignment.clocks.items():
        assert clocks_again[name].offset_ns == pytest.approx(clock.offset_ns, abs=1)
        assert clocks_again[name].intervals_ns[0] == pytest.approx(clock.intervals_ns[0], abs=1)


def test_the_same_each_time() -> None:
    clocks, evidence = two_clocks(300)
    assert align(list(clocks), evidence) == align(list(clocks), evidence)


def test_transfers_are_compared_with_transfers_of_their_size() -> None:
    # Pushes and answers of 4 MB take 30 ms each way; only acknowledgements are fast, and those go
    # one way. Against them, pushes would look late by 15 ms.
    rng = np.random.default_rng(3)
    clocks = {"w": TrueClock(), "s": TrueClock(-20_000_000, 10_000)}
    sent = np.arange(0, 10 * SECOND, SECOND // 20)
    slow = 30_000_000 + some_delays(rng, sent.size, 20_000)
    large = np.full(sent.size, 4_000_000)
    evidence = [
        messages("w", "s", clocks, sent, slow, size_bytes=large),
        messages("s", "w", clocks, sent, slow[::-1], size_bytes=large),
        messages("s", "w", clocks, sent, some_delays(rng, sent.size, 50_000)),
    ]
    error = errors(align(["w", "s"], evidence), clocks, ints([0, 5 * SECOND, 10 * SECOND]))["s"]
    assert np.all(np.abs(error) < 200_000)


def test_fast_messages_outweigh_many_slow_sizes() -> None:
    # Of five sizes, all answers take 1 ms longer; taken for alike, they would move the clock as far
    # as the small messages' bounds of 50 µs let them.
    clocks = {"w": TrueClock(), "s": TrueClock(3_000_000, -20_000)}
    sent = np.arange(0, 10 * SECOND, SECOND // 10)
    sizes = np.arange(sent.size) % 6 * 1_000_000
    large = (sizes > 0).astype(np.int64)
    there = 50_000 + large * 10_000_000
    evidence = [
        messages("w", "s", clocks, sent, there, size_bytes=sizes),
        messages("s", "w", clocks, sent, there + large * 1_000_000, size_bytes=sizes),
    ]
    error = errors(align(["w", "s"], evidence), clocks, ints([0, 5 * SECOND, 10 * SECOND]))["s"]
    assert np.all(np.abs(error) < 5_000)


@pytest.mark.parametrize("seed", range(3))
def test_pushes_that_nearly_all_queue_say_little_about_drift(seed: int) -> None:
    # Under fifo small pushes wait behind large ones, but for the first; acknowledgements never do.
    # The widest straight strip between the two would lean into the pushes' queues, by 40 ppm.
    rng = np.random.default_rng(seed)
    clocks = {"w": TrueClock(), "s": TrueClock(31_000_000, -42_000)}
    sent = np.sort(rng.integers(0, 25 * SECOND, 600))
    there = 4_000_000 + rng.exponential(2e7, sent.size).astype(np.int64)
    there[:20] = 150_000 + rng.exponential(1e6, 20).astype(np.int64)
    back = 100_000 + rng.exponential(5e5, sent.size).astype(np.int64)
    evidence = [messages("w", "s", clocks, sent, there), messages("s", "w", clocks, sent, back)]
    alignment = align(["w", "s"], evidence)
    error = errors(alignment, clocks, ints([0, 12 * SECOND, 25 * SECOND]))["s"]
    # Half of what the first pushes take longer is there all the time.
    assert np.all(np.abs(error) < 150_000)
    assert np.ptp(error) < 20_000


def test_messages_one_way_bound_one_side() -> None:
    clocks, evidence = two_clocks(300)
    for chosen, bounded in ((0, 0), (1, 1)):
        alignment = align(["a", "b"], evidence[chosen : chosen + 1])
        clock = alignment.clocks["b"]
        # A message to b was seen after it was sent: b's clock cannot be further ahead than that,
        # and true times cannot be earlier than corrected so.
        assert clock.interval_ns[bounded] is not None
        assert clock.interval_ns[1 - bounded] is None
        sides = alignment.interval_at("b", ints([0, SECOND, 100 * SECOND]))
        assert np.all(np.isfinite(sides[bounded]))
        assert np.all(np.isinf(sides[1 - bounded]))
        # The smallest delay, of 50 µs, is taken for none.
        assert abs(errors(alignment, clocks, ints([15 * SECOND]))["b"][0]) < 100_000
        assert None in json.loads(json.dumps(alignment.as_json()))["clocks"]["b"]["interval_ns"]


def test_a_ring_of_machines_is_bounded_all_around() -> None:
    rng = np.random.default_rng(11)
    clocks = {f"m{i}": TrueClock(i * 13_000_000, i * 11_000) for i in range(4)}
    names = list(clocks)
    evidence = []
    for a, b in zip(names, names[1:] + names[:1], strict=True):
        sent = rng.integers(0, 20 * SECOND, 5000)
        evidence.append(messages(a, b, clocks, sent, some_delays(rng, 5000, 40_000)))
    alignment = align(names, evidence)
    for name, error in errors(alignment, clocks, ints([SECOND, 10 * SECOND, 19 * SECOND])).items():
        assert np.all(np.abs(error) < 30_000)  # all links are equal, so delays are found, too
        low, high = alignment.clocks[name].interval_ns
        assert low is not None
        assert high is not None
        # Of 160 µs all around, a machine can have any part before it.
        assert high - low == 0 if name == "m0" else 160_000 < high - low < 200_000


def contradictory(late_ns: int) -> tuple[list[str], list[Evidence]]:
    """Two workers and two servers; one push of worker-1 to server-0 is seen too early."""
    rng = np.random.default_rng(2)
    names = ["worker-0", "worker-1", "server-0", "server-1"]
    clocks = {name: TrueClock(7_000_000 * i, 9_000 * i) for i, name in enumerate(names)}
    evidence = []
    for worker in names[:2]:
        for server in names[2:]:
            for a, b in ((worker, server), (server, worker)):
                sent = rng.integers(0, 5 * SECOND, 500)
                evidence.append(messages(a, b, clocks, sent, some_delays(rng, 500, 50_000)))
    wrong = next(e for e in evidence if (e.cause_machine, e.effect_machine) == (names[1], names[2]))
    wrong.effect_ns[123] = wrong.cause_ns[123] + 7_000_000 - late_ns
    return names, evidence


def test_contradictions_are_named() -> None:
    names, evidence = contradictory(5_000_000)
    alignment = align(names, evidence)
    (found,) = alignment.contradictions
    assert (found.cause_machine, found.effect_machine) == ("worker-1", "server-0")
    assert (found.kind, found.index, found.count, found.total) == ("push", 123, 1, 500)
    # To within what the other messages leave open.
    assert found.early_ns == pytest.approx(5_000_000, abs=200_000)
    text = str(found)
    assert text.startswith("clocks of worker-1 and server-0 contradict: push 123 at ")
    assert "\n" not in text
    # Other evidence still finds the clocks, and intervals rely on it alone.
    clocks = {name: TrueClock(7_000_000 * i, 9_000 * i) for i, name in enumerate(names)}
    for name, error in errors(alignment, clocks, ints([0, 5 * SECOND])).items():
        low, high = alignment.clocks[name].interval_ns
        assert low is not None
        assert high is not None
        assert np.all((low - 2 <= error) & (error <= high + 2))
    assert json.loads(json.dumps(alignment.as_json()))["contradictions"] == [asdict(found)]


def test_a_tolerance_takes_it_for_imprecise_stamps() -> None:
    names, evidence = contradictory(5_000_000)
    alignment = align(names, evidence, tolerance_ns=5_100_000)
    assert alignment.contradictions == ()
    low, high = alignment.clocks["server-1"].interval_ns
    assert low is not None
    assert high is not None
    assert high - low > 5_000_000


def test_without_other_evidence_nothing_is_certain() -> None:
    evidence = [
        Evidence("a", "b", "ask", ints([0, 100]), ints([1_000_000, 1_000_200])),
        Evidence("b", "a", "answer", ints([3_000_000]), ints([1_500_000])),
    ]
    alignment = align(["a", "b"], evidence)
    (found,) = alignment.contradictions
    assert {found.cause_machine, found.effect_machine} == {"a", "b"}
    assert found.early_ns == pytest.approx(500_000, abs=3 * TOLERANCE_NS)
    assert alignment.clocks["b"].interval_ns == (None, None)


def test_drift_beyond_the_limit_is_a_contradiction() -> None:
    clocks = {"a": TrueClock(), "b": TrueClock(0, 300_000)}
    sent = np.arange(0, 100 * SECOND, SECOND)
    evidence = [
        messages(a, b, clocks, sent, np.full(100, 50_000)) for a, b in (("a", "b"), ("b", "a"))
    ]
    assert align(["a", "b"], evidence, drift_limit_ppm=301).contradictions == ()
    assert align(["a", "b"], evidence, drift_limit_ppm=200).contradictions


def test_events_of_one_machine_need_no_alignment_but_order() -> None:
    evidence = two_clocks(50)[1]
    own = Evidence("b", "b", "sum", ints([10, 20]), ints([15, 20]))
    assert align(["a", "b"], [*evidence, own]).contradictions == ()
    backwards = Evidence("b", "b", "sum", ints([10, 20_000]), ints([15, 3_000]))
    (found,) = align(["a", "b"], [*evidence, backwards]).contradictions
    assert (found.cause_machine, found.effect_machine, found.index) == ("b", "b", 1)
    assert found.early_ns == pytest.approx(17_000, abs=ROUNDING_NS)
    assert str(found).startswith("clock of b contradicts itself: sum 1 at 3000 on b ")


def test_one_machine_is_its_own_reference() -> None:
    alignment = align(["only"], [])
    assert alignment.clocks["only"].interval_ns == (0, 0)
    assert alignment.to_reference("only", ints([-5, 2**61])).tolist() == [-5, 2**61]


def test_any_machine_can_be_the_reference() -> None:
    clocks, evidence = two_clocks(300)
    times = ints([0, 30 * SECOND])
    for reference in clocks:
        alignment = align(["a", "b"], evidence, reference=reference)
        assert alignment.clocks[reference].interval_ns == (0, 0)
        assert alignment.clocks[reference].offset_ns == 0
        for error in errors(alignment, clocks, times).values():
            assert np.all(np.abs(error) < 50_000)


ALIGNED = align(["a", "b"], two_clocks(2)[1])


@settings(max_examples=100)
@given(
    st.integers(-(10**17), 10**17),
    st.integers(-1_000_000, 1_000_000),
    st.lists(st.integers(-(10**13), 10**13), min_size=2, max_size=30),
)
def test_conversion_keeps_order_and_is_the_models(
    offset_ns: int, drift_ppb: int, elapsed: list[int]
) -> None:
    clock = replace(ALIGNED.clocks["b"], offset_ns=offset_ns, drift_ppm=drift_ppb / 1000)
    alignment = replace(ALIGNED, clocks={"b": clock})
    local = np.sort(ints(elapsed)) + offset_ns + alignment.reference_ns
    times = alignment.to_reference("b", local)
    assert np.all(np.diff(times) >= 0)
    assert times.dtype == np.int64
    for shown, time in zip(local.tolist(), times.tolist(), strict=True):
        # clock(t) = t + offset + drift (t - reference), to the rounding of a time and of its drift
        since = time - alignment.reference_ns
        assert abs(time + offset_ns - shown + Fraction(since * drift_ppb, 10**9)) <= 1


@pytest.mark.parametrize(
    ("machines", "more", "named"),
    [
        (["a", "b", "c", "d"], {}, "no events connect c, d with a"),
        (["a"], {}, "b is none of the machines a"),
        (["a", "b", "b"], {}, "must be one or more, each once"),
        ([], {}, "must be one or more"),
        (["a", "b"], {"reference": "z"}, "reference z: is none of the machines a, b"),
        (["a", "b"], {"drift_limit_ppm": -1}, "drift_limit_ppm -1"),
        (["a", "b"], {"drift_limit_ppm": float("nan")}, "drift_limit_ppm nan"),
        (["a", "b"], {"tolerance_ns": -1}, "tolerance_ns -1"),
    ],
)
def test_what_does_not_fit_is_named(machines: list[str], more: dict[str, int], named: str) -> None:
    with pytest.raises(UserError, match=named) as caught:
        align(machines, two_clocks(5)[1], **more)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_empty_evidence_connects_nothing() -> None:
    empty = Evidence("a", "b", "push", ints([]), ints([]))
    with pytest.raises(UserError, match="no events connect b with a"):
        align(["a", "b"], [empty])
    with pytest.raises(UserError, match="machine c: is not aligned; these are: a, b"):
        align(["a", "b"], two_clocks(5)[1]).to_reference("c", ints([0]))
