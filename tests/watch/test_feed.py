"""Events: each once, and a straggler only when it stays one."""

from __future__ import annotations

from byteprophet.watch.feed import Feed


def texts(feed: Feed) -> list[str]:
    return [one.text for one in feed.latest]


def test_a_straggler_is_one_only_after_several_looks() -> None:
    feed = Feed()
    assert feed.straggler(None, None) is None
    for role in ("a", None) * 10:
        assert feed.straggler(1.0, role) is None
    looks = 0
    while feed.straggler(2.0, "a") is None:
        looks += 1
        assert looks < 20
    assert looks > 3
    feed.straggler(3.0, None)
    assert feed.straggler(3.0, "a") == "a"
    for _ in range(20):
        left = feed.straggler(4.0, None)
    assert left is None
    assert texts(feed) == ["a is a straggler", "a is no straggler any more"]


def test_the_straggler_of_a_run_that_was_not_watched_before() -> None:
    feed = Feed()
    assert feed.straggler(None, "a") == "a"
    assert [(one.unix_s, one.text) for one in feed.latest] == [(None, "a is a straggler")]


def test_workers_leave_once() -> None:
    feed = Feed()
    feed.left(1.0, [])
    feed.left(2.0, ["b", "a"])
    feed.left(3.0, ["b", "a"])
    assert texts(feed) == ["a has left", "b has left"]


def test_only_the_latest_are_kept_on_one_line() -> None:
    feed = Feed()
    feed.add(1.0, "plan", [f"{number}\n\x1b" for number in range(1000)])
    assert len(feed.latest) < 200
    assert texts(feed)[-1] == "999 \\x1b"
