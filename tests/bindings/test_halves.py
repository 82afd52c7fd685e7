"""Halves of all-reduces on one link: as the rule of ``strict_priority`` says, released in turn."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from byteprophet import _core
from byteprophet.strict_priority import strict_priority

times = st.integers(0, 40)
buckets = st.lists(st.tuples(times, times, times, st.booleans()), max_size=10)


@given(buckets, st.integers(0, 80), st.randoms(use_true_random=False))
def test_halves_have_the_link_by_strict_priority(
    drawn: list[tuple[int, int, int, bool]], step_ns: int, lot: random.Random
) -> None:
    count = len(drawn)
    places = list(range(2 * count))
    lot.shuffle(places)
    reduce_place, gather_place = places[:count], places[count:]
    needs_ns = [0] * (2 * count)
    bucket_of = {place: number for number, place in enumerate(reduce_place)}
    for number, (_, reduce_ns, gather_ns, _) in enumerate(drawn):
        needs_ns[reduce_place[number]], needs_ns[gather_place[number]] = reduce_ns, gather_ns
    to_come = [(each[0], place) for each, place in zip(drawn, reduce_place, strict=True)]
    start: dict[int, int] = {}
    end: dict[int, int] = {}
    for starts_ns, ends_ns, place, done in strict_priority(to_come, needs_ns):
        start.setdefault(place, starts_ns)
        if done:
            end[place] = ends_ns
        if done and place in bucket_of:
            bucket = bucket_of[place]
            release_ns = max(ends_ns, step_ns) if drawn[bucket][3] else ends_ns
            to_come.append((release_ns, gather_place[bucket]))
            to_come.sort(reverse=True)
    found = _core.times_of_halves(
        [each[0] for each in drawn],
        [each[1] for each in drawn],
        [each[2] for each in drawn],
        reduce_place,
        gather_place,
        [each[3] for each in drawn],
        step_ns,
    )
    assert found == (
        [start[place] for place in reduce_place],
        [end[place] for place in reduce_place],
        [start[place] for place in gather_place],
        [end[place] for place in gather_place],
    )
