"""What the text had in the same context before: the index, and how its tokens are ranked among a draft's own."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ssd.runtime.drafting.context_lookup import KEPT, ContextLookup
from ssd.runtime.sync.calibration import BINS, Calibration


def by_hand(text, path):
    """Tokens that followed the last two of text and path, then the last one, newest first, KEPT of each."""
    found = {}
    last = (text + path)[-2:]
    for length in (2, 1):
        context, follow = last[-length:], []
        for i in range(len(text) - 1, length - 1, -1):
            if len(context) == length and text[i - length : i] == context and text[i] not in follow:
                follow.append(text[i])
        for token in follow[:KEPT]:
            found.setdefault(token, length)
    return list(found.items())


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=30), st.lists(st.integers(0, 4), max_size=3), st.lists(st.integers(0, 30)))
def test_the_index_is_what_a_search_finds_however_the_text_came(text, path, cuts):
    echo, ends = ContextLookup(), sorted({min(c, len(text)) for c in cuts} | {len(text)})
    for begin, end in zip([0, *ends], ends, strict=False):
        echo.extend(text[begin:end])
    assert echo.after(path) == by_hand(text, path) and echo.size == len(text)


def test_children_of_a_node_in_order_of_their_chance():
    c = Calibration()
    plain = c.rank([7, 8, 9], [0.6, 0.3, 0.1], 2, [])
    assert [(t, row) for _, t, (_, row) in plain] == [(7, c.FIRST), (8, c.LATER)]
    assert [chance for chance, *_ in plain] == [c.table[0][int(0.6 * BINS)], c.table[1][int(0.3 * BINS)]]
    agreed = c.rank([7, 8, 9], [0.6, 0.3, 0.1], 2, [(7, 2), (5, 1)])
    assert [(t, row) for _, t, (_, row) in agreed] == [(7, c.AGREED), (8, c.LATER)]
    other = c.rank([7, 8, -1], [0.1, 0.05, 0.0], 3, [(5, 2)])
    assert [(t, row) for _, t, (_, row) in other] == [(5, c.LONG), (7, c.FIRST), (8, c.LATER)]
    where = other[0][2]
    for _ in range(100):
        c.update(where, False)
    # it has learned that this text does not repeat
    assert c.rank([7, 8, -1], [0.1, 0.05, 0.0], 3, [(5, 2)])[-1][1] == 5
    assert c.rank([7, 8, 9], [0.1, 0.05, 0.0], 3, [(5, 1)])[0][1] == 5  # it has learned nothing about shorter contexts


def forest(text, flight):
    from types import SimpleNamespace

    import numpy as np

    from ssd.runtime.lanes.forest import Forest
    from ssd.runtime.lanes.lane_slot import LaneSlot

    pages = SimpleNamespace(drop=lambda slot: None, names_of=lambda sequence: b"")
    runner = SimpleNamespace(draft=SimpleNamespace(shift=0), own=(), pages=pages)
    sequence = SimpleNamespace(tokens=np.empty(64, np.int64), params=None, seed=0, prompt_len=0)
    f = Forest(runner, LaneSlot(0, 1, sequence, []), born=1)
    f.restart(text, flight)
    return f


def computed(best=(), bonus=(), q=None):
    from ssd.runtime.lanes.forest import Computed

    return Computed(best, bonus, q, None)


def test_candidates_are_the_drafts_and_the_texts_without_what_is_verified():
    from ssd.runtime.engine.tree import Tree

    f = forest([1, 2, 3, 1, 2, 4, 9, 1, 2], Tree([4, 5], [-1, 0]))  # after 1, 2 came 4 and 3; after 2 the same
    f.known = {node: computed(bonus=bonus) for node, bonus in {-1: [6, 4, 3, -1], 0: [7, 9, 8], 1: []}.items()}
    assert f.candidates(-1) == [3, 6]  # 4 is verified
    assert f.rank(-1, 6) == 1 and f.rank(-1, 4) is None
    assert f.candidates(0) == [9, 7, 8]  # after 4 came 9; 5 would be taken, but nobody proposes it
    assert f.candidates(1) == [] == f.candidates(5)
    f.known[1] = computed(bonus=[7, 8])
    assert f.candidates(1) == [7, 8]  # nothing came after 5 yet
    f.lookup.extend([4, 5, 3, 0])
    assert f.candidates(1) == [7, 3, 8]  # where nothing was rejected, the draft comes first
    f = forest([1, 2, 3, 1, 2, 4, 9, 1, 2], Tree())
    f.known = {-1: computed(best=[6, 4])}
    assert f.children(-1, 1) == [6] and f.children(-1, 2) == [6, 4] and f.children(-1, 3) == [6, 4, 4]
    f.known = {-1: computed(best=[6, 7])}
    assert f.children(-1, 2) == [6, 4]  # what the text had before the draft's second choice
    f.known = {-1: computed(best=[6, 7], q=torch.ones(1))}
    assert f.children(-1, 2) == [6, 7]  # unless both were sampled
