"""The law of hits, and the allocation of branches by it."""

import pytest

from ssd.simulate.outcomes import allocate, exponent_of, law


def test_law_of_hits_by_hand():
    outcomes = law(0.8, 1.0, [3, 3, 2])
    assert outcomes.lengths(2).tolist() == pytest.approx([0.2, 0.16, 0.64])
    assert outcomes.expected(2) == pytest.approx(1 + 0.8 + 0.64)
    assert outcomes.inner == pytest.approx((3 / 4, 3 / 4, 2 / 3)) and outcomes.leaf[2] == pytest.approx(0.9)
    assert outcomes.hit_rate(2) == pytest.approx(0.2 * 0.75 + 0.16 * 0.75 + 0.64 * 0.9)
    assert law(0.8, 1.0, [1, 1]).leaf[1] == pytest.approx(0.8)  # one candidate is the draft's next token
    assert law(0.8, 1.0, [0, 0]).hit_rate(1) == 0


def test_allocation_takes_every_gain_in_turn_and_follows_theorem_12():
    a, r, k = 0.8, 1.0, 4
    fan_out = allocate(a, r, k, 60)
    assert sum(fan_out) == 60 and fan_out[:k] == sorted(fan_out[:k], reverse=True)
    # (F + 1)^-(1 + r) times the chance of the node is the same everywhere: F + 1 goes with a^(n / (1 + r))
    for n in range(k):
        assert (fan_out[n] + 1) / (fan_out[0] + 1) == pytest.approx(a ** (n / (1 + r)), abs=0.1)
    best = max((law(a, r, [i, j, 6 - i - j]).hit_rate(2), [i, j, 6 - i - j]) for i in range(7) for j in range(7 - i))
    assert law(a, r, allocate(a, r, 2, 6)).hit_rate(2) == pytest.approx(best[0])


def test_exponent_is_found_again():
    assert exponent_of(0.7, [3] * 6, law(0.7, 1.3, [3] * 6).hit_rate(5)) == pytest.approx(1.3)
