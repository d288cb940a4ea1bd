# SPDX-License-Identifier: Apache-2.0

"""How replicas are split over clusters, compared with all ways to split them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from locator.distribution.split import split
from tests.oracle.federation_creation import brute_split

NAMES = ("a", "b", "c", "d")
EQUAL = {"a": 1, "b": 1, "c": 1}

# id -> replicas, weights, spare, lost, what each cluster gets
ROWS: Mapping[str, tuple[int, dict[str, int], int, str, dict[str, int]]] = {
    "equal": (9, EQUAL, 0, "", {"a": 3, "b": 3, "c": 3}),
    "what does not divide goes to the first by name": (8, EQUAL, 0, "", {"a": 3, "b": 3, "c": 2}),
    "fewer than clusters": (1, EQUAL, 0, "", {"a": 1, "b": 0, "c": 0}),
    "none": (0, EQUAL, 0, "", {"a": 0, "b": 0, "c": 0}),
    "one cluster": (7, {"a": 1}, 0, "", {"a": 7}),
    "no cluster": (7, {}, 0, "", {}),
    "the order of the names counts, not that of the mapping": (1, {"b": 1, "a": 1}, 0, "", {"a": 1, "b": 0}),
    # Names compare as text: the split must be the same wherever it is computed.
    "names compare as text": (1, {"c10": 1, "c9": 1}, 0, "", {"c10": 1, "c9": 0}),
    "in proportion": (9, {"a": 2, "b": 1}, 0, "", {"a": 6, "b": 3}),
    # Shares are 3.5, 1.75, 1.75: two are left, for b and c, although a comes first by name.
    "the largest remainders": (7, {"a": 2, "b": 1, "c": 1}, 0, "", {"a": 3, "b": 2, "c": 2}),
    # Shares are 2.5 and 2.5: the name decides.
    "ties by name": (5, {"a": 7, "b": 7}, 0, "", {"a": 3, "b": 2}),
    # Shares are 0.5, 1, 0.5.
    "ties by name beside a whole share": (2, {"a": 1, "b": 2, "c": 1}, 0, "", {"a": 1, "b": 1, "c": 0}),
    "weight 0": (4, {"a": 0, "b": 1}, 0, "", {"a": 0, "b": 4}),
    "a weight that differs hugely": (3, {"a": 1_000_000, "b": 1}, 0, "", {"a": 3, "b": 0}),
    "many": (1_000_000, EQUAL, 0, "", {"a": 333_334, "b": 333_333, "c": 333_333}),
    # Nobody has a weight: nothing is wanted anywhere.
    "all weights 0": (4, {"a": 0, "b": 0}, 0, "", {"a": 0, "b": 0}),
    # 9 x 3/2 = 13.5, rounded up 14; 14/3 rounded up is 5: 10 remain whichever is lost.
    "overprovision": (9, EQUAL, 1, "", {"a": 5, "b": 5, "c": 5}),
    "overprovision without a remainder": (10, EQUAL, 1, "", {"a": 5, "b": 5, "c": 5}),
    # 10 x 4/2 = 20, and 20 x 2/4, 20 x 1/4, 20 x 1/4. Without a, 10 remain.
    "overprovision by weights": (10, {"a": 2, "b": 1, "c": 1}, 1, "", {"a": 10, "b": 5, "c": 5}),
    # 4 x 5/3 = 6.67, raised 7; 7/5 rounded up is 2. By largest remainders (2, 2, 1, 1, 1), 3 would remain.
    "every share is rounded up": (4, dict.fromkeys("abcde", 1), 2, "", dict.fromkeys("abcde", 2)),
    # 1 x 5/2 = 2.5, raised 3; 3 x 2/5 and 3 x 3/5 rounded up: raised before the split, as is written.
    "raised before the split": (1, {"a": 2, "b": 3}, 1, "", {"a": 2, "b": 2}),
    "overprovision of none": (0, EQUAL, 1, "", {"a": 0, "b": 0, "c": 0}),
    "overprovision 2 of 3": (4, EQUAL, 2, "", {"a": 4, "b": 4, "c": 4}),
    "one is lost": (8, EQUAL, 0, "b", {"a": 4, "b": 0, "c": 4}),
    "two are lost": (8, EQUAL, 0, "ab", {"a": 0, "b": 0, "c": 8}),
    "a lost one has its weight taken": (9, {"a": 2, "b": 1, "c": 6}, 0, "c", {"a": 6, "b": 3, "c": 0}),
    # There are no others to take their shares; and when they come back, for a minute all would otherwise run nothing.
    "all are lost": (8, EQUAL, 0, "abc", {"a": 3, "b": 3, "c": 2}),
    "all that have a weight are lost": (8, {"a": 1, "b": 0}, 0, "a", {"a": 8, "b": 0}),
    # Of the others, one more may be lost: 8 x 2/1.
    "overprovision when one is lost": (8, EQUAL, 1, "a", {"a": 0, "b": 8, "c": 8}),
    # W - the K greatest is 0 of those that are left: if that one is lost, too, nothing can remain. It has all.
    "overprovision when all but one are lost": (8, EQUAL, 1, "ab", {"a": 0, "b": 0, "c": 8}),
    "overprovision when all are lost": (8, EQUAL, 1, "abc", {"a": 4, "b": 4, "c": 4}),
    "a lost one that is unknown": (8, {"a": 1, "b": 1}, 0, "x", {"a": 4, "b": 4}),
}  # fmt: skip


@pytest.mark.parametrize(("replicas", "weights", "spare", "lost", "expected"), ROWS.values(), ids=ROWS)
def test_the_table(replicas: int, weights: dict[str, int], spare: int, lost: str, expected: dict[str, int]) -> None:
    """Each row says why it is so."""
    assert split(replicas, weights, spare=spare, lost=set(lost)) == expected


@pytest.mark.parametrize(
    ("replicas", "weights", "spare"),
    [
        (4, EQUAL, 3),
        (4, EQUAL, 9),
        (0, EQUAL, 3),
        (4, {"a": 1}, 1),
        # A cluster of weight 0 has nothing that could be lost.
        (4, {"a": 1, "b": 1, "c": 0}, 2),
        # a would have to run 10^12.
        (1_000_000, {"a": 1_000_000, "b": 1}, 1),
    ],
    ids=[
        "as many as there are",
        "more than there are",
        "of none",
        "one cluster",
        "beside weight 0",
        "too many replicas",
    ],
)
def test_what_cannot_be(replicas: int, weights: dict[str, int], spare: int) -> None:
    """Where all clusters that run something may be lost, nothing can remain: an error, not a division by zero."""
    with pytest.raises(ValueError, match=r"\d"):
        split(replicas, weights, spare=spare)


FEW = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 6), max_size=4)
LOST = st.sets(st.sampled_from(NAMES))


@given(replicas=st.integers(0, 14), weights=FEW, spare=st.integers(0, 5), lost=LOST)
def test_all_ways_to_split(replicas: int, weights: dict[str, int], spare: int, lost: set[str]) -> None:
    """It is what one finds by trying all ways to split the replicas."""
    assume(not spare or spare < sum(weight > 0 for weight in weights.values()))
    expected = brute_split(replicas, weights, spare=spare, lost=lost)
    assert split(replicas, weights, spare=spare, lost=lost) == expected


MANY = st.dictionaries(st.text("abcdefgh-", min_size=1, max_size=5), st.integers(0, 1_000_000), min_size=1, max_size=30)


@given(replicas=st.integers(0, 1_000_000), weights=MANY)
def test_nothing_is_lost_or_doubled(replicas: int, weights: dict[str, int]) -> None:
    """Shares add up, and differ by less than one from what the weights ask for."""
    found, together = split(replicas, weights), sum(weights.values())
    assert found.keys() == weights.keys()
    assert sum(found.values()) == (replicas if together else 0)
    assert all(abs(found[name] * together - replicas * weight) < together for name, weight in weights.items() if weight)
    assert not any(found[name] for name, weight in weights.items() if not weight)


@given(replicas=st.integers(0, 1000), weights=FEW, spare=st.integers(0, 3))
def test_enough_remain(replicas: int, weights: dict[str, int], spare: int) -> None:
    """Whichever clusters are lost, as many as overprovision says, all replicas remain in the others."""
    heavy = [name for name, weight in weights.items() if weight]
    assume(spare < len(heavy))
    found = split(replicas, weights, spare=spare)
    for gone in combinations(heavy, spare):
        assert sum(number for name, number in found.items() if name not in gone) >= replicas


@given(replicas=st.integers(0, 1000), clusters=st.integers(1, 10))
def test_one_more_replica_moves_none(replicas: int, clusters: int) -> None:
    """With equal shares, one more replica is one more in one cluster, and all others keep theirs."""
    equal = {f"c{number}": 1 for number in range(clusters)}
    before, after = split(replicas, equal), split(replicas + 1, equal)
    assert sorted(after[name] - before[name] for name in equal) == [0] * (clusters - 1) + [1]
