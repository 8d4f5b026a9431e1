"""Who may be out at the same time is the same as by looking at everybody each time."""

from __future__ import annotations

import hypothesis
from hypothesis import given
from hypothesis import strategies as st

from gdsdeploy.rollout.waves import Claims, Key, Queue, Slots, keys_of

HOSTS = [f"h{i}" for i in range(12)]


def by_looking(slots: Slots, waiting: dict[str, tuple[int, ...]], number: int) -> list[str]:
    """The first that may go, then the next that may go with it, and so on, until one is met for which no room is."""
    room, claims, chosen = slots.limit - slots.used, set[Key](), list[str]()
    for host in sorted(waiting, key=lambda each: (waiting[each], each)):
        costs = 0 if host in slots.down else 1
        if len(chosen) == number or costs > room:
            break
        others = (slots.held | slots.down) - {host}
        out = {key for other in others for key in slots.keys(other)}
        if not (out | claims) & set(slots.keys(host)):
            chosen.append(host)
            claims.update(slots.keys(host))
            room -= costs
    return chosen


_labels = st.fixed_dictionaries({}, optional={"rack": st.sampled_from("ab"), "row": st.sampled_from("xyz")})
_acts = st.tuples(st.sampled_from(["add", "begin", "begin", "free", "free", "leave", "down", "up"]), st.integers(0, 11))


@hypothesis.settings(deadline=None, max_examples=300)
@given(st.lists(_labels, min_size=12, max_size=12), st.integers(1, 6), st.lists(_acts, max_size=60), st.integers(0, 5))
def test_a_queue_chooses_as_if_it_looked_at_everybody(
    labels: list[dict[str, str]], limit: int, acts: list[tuple[str, int]], number: int
) -> None:
    keys = {host: keys_of(["rack", "row"], each) for host, each in zip(HOSTS, labels, strict=True)}
    slots = Slots(limit, lambda host: keys[host], ())
    queue = Queue(slots)
    waiting: dict[str, tuple[int, ...]] = {}

    def add(host: str) -> None:
        waiting[host] = (0 if host in slots.down else 1, HOSTS.index(host))
        queue.add(host, waiting[host])

    for host in HOSTS:
        add(host)
    for act, which in acts:
        host = HOSTS[which]
        chosen = queue.first(number, Claims(slots.limit - slots.used))
        assert chosen == by_looking(slots, waiting, number)
        assert chosen == queue.first(number, Claims(slots.limit - slots.used)), "it changes nothing"
        if act == "begin" and chosen:
            host = chosen[which % len(chosen)]
            queue.discard(host)
            del waiting[host]
            slots.set_held(host, True)
        elif act == "leave":
            queue.discard(host)
            waiting.pop(host, None)
        elif act == "free":
            slots.set_held(host, False)
        elif act == "add" and host not in slots.held:
            add(host)
        elif act in ("down", "up"):
            slots.set_down(host, act == "down")
            if host in waiting:
                add(host)
        assert slots.used == len(slots.held | slots.down)
    assert sorted(queue) == sorted(waiting)


def racks(**labels: str) -> tuple[Slots, Queue]:
    """Hosts that wait in this order, with their racks and rows: ``h1="a"``, ``h2="az"``."""
    slots = Slots(9, lambda host: tuple(("label", letter) for letter in labels[host]), ())
    queue = Queue(slots)
    for rank, host in enumerate(labels):
        queue.add(host, (rank,))
    return slots, queue


def begin(slots: Slots, queue: Queue, *hosts: str) -> None:
    assert queue.first(9, Claims(9)) == list(hosts)
    for host in hosts:
        queue.discard(host)
        slots.set_held(host, True)
    assert queue.first(9, Claims(9)) == []


def test_who_leaves_keeps_nobody_behind_it_waiting() -> None:
    slots, queue = racks(h1="a", h2="a", h3="a")
    begin(slots, queue, "h1")
    slots.set_held("h1", False)
    queue.discard("h2")
    assert queue.first(9, Claims(9)) == ["h3"]


def test_who_waits_for_something_else_keeps_nobody_behind_it_waiting() -> None:
    slots, queue = racks(h0="z", h1="a", h2="az", h3="a")
    begin(slots, queue, "h0", "h1")
    slots.set_held("h1", False)
    assert queue.first(9, Claims(9)) == ["h3"]
    slots.set_held("h0", False)
    assert queue.first(9, Claims(9)) == ["h2"]


def test_who_has_no_work_takes_no_room() -> None:
    slots = Slots(1, lambda _: (("rack", "1"),), ["x"])
    slots.exempt.add("builder")
    queue = Queue(slots)
    queue.add("host", (2,))
    queue.add("builder", (1,))
    assert queue.first(9, Claims(0)) == ["builder"]


def test_claims_are_shared_between_queues() -> None:
    slots = Slots(2, lambda host: (("rack", host[0]),), ())
    one, other = Queue(slots), Queue(slots)
    one.add("a1", (1,))
    for rank, host in enumerate(["a2", "b1", "c1"]):
        other.add(host, (rank,))
    claims = Claims(2)
    assert one.first(9, claims) == ["a1"]
    assert other.first(9, claims) == ["b1"]
