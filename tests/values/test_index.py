# SPDX-License-Identifier: Apache-2.0

"""The store's index: keys of objects by the values that named functions return for them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from locator.index import Index, Relation

Row = tuple[str, tuple[str, ...]]  # a node, and some pods


def node_of(row: Row) -> tuple[str, ...]:
    return (row[0],)


def pods_of(row: Row) -> tuple[str, ...]:
    return row[1]


def index() -> Index[str, Row]:
    return Index(node=node_of, pod=pods_of)


def test_a_value_of_many_objects() -> None:
    """However many objects have it, each is found once, until it leaves."""
    slices, names = index(), [f"s{number}" for number in range(600)]
    for count, name in enumerate(names, 1):
        slices.move(name, None, ("a1", ("p", "p")))
        assert len(slices.keys("node", "a1")) == len(slices.keys("pod", "p")) == count
    for name in names:
        assert name in slices.keys("pod", "p")
        slices.move(name, ("a1", ("p", "p")), None)
        assert name not in slices.keys("pod", "p")
    assert [*slices.values("node")] == [*slices.values("pod")] == []


rows = st.tuples(st.sampled_from("ab"), st.lists(st.sampled_from(("p0", "p1", "p2")), max_size=4).map(tuple))


@given(st.lists(st.tuples(st.sampled_from(("web", "api", "db")), st.none() | rows), max_size=20))
def test_it_says_what_a_plain_look_at_all_objects_says(events: list[tuple[str, Row | None]]) -> None:
    """After any changes, the index equals a search through all objects."""
    slices, known = index(), dict[str, Row]()
    for key, after in events:
        slices.move(key, known.pop(key, None), after)
        if after is not None:
            known[key] = after
        for name, function in (("node", node_of), ("pod", pods_of)):
            expected = {value for row in known.values() for value in function(row)}
            assert {*slices.values(name)} == expected
            for value in expected:
                keys = slices.keys(name, value)
                assert sorted(keys) == sorted(key for key, row in known.items() if value in function(row))
            keys_of = [[*slices.keys(name, value)] for value in expected]
            alone = [keys[0] if len(keys) == 1 else None for keys in keys_of]
            assert slices.only_each(name, [*expected, "none"]) == [*alone, None]
            assert [slices.only(name, value) for value in expected] == alone


@given(st.lists(st.tuples(st.sampled_from(("web", "api")), st.lists(st.sampled_from("pqr"), unique=True).map(tuple))))
def test_a_relation_is_found_from_both_sides(events: list[tuple[str, tuple[str, ...]]]) -> None:
    """It says whether the values of a key differ, and finds the keys by them."""
    relation, known = Relation[str, str](), dict[str, tuple[str, ...]]()
    for key, values in events:
        assert relation.set(key, values) is (known.get(key, ()) != values)
        known[key] = values
        assert relation.values_of(key) == values and bool(relation) is any(known.values())
        assert {*relation.values()} == {value for values in known.values() for value in values}
        for value in "pqr":
            assert sorted(relation.keys_of(value)) == sorted(key for key, values in known.items() if value in values)
