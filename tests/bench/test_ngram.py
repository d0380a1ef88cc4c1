"""The n-gram benchmark replays answers as decoding would meet them."""

import json

import numpy as np

from bench import ngram


def test_replay_counts_what_a_verification_would_have_accepted():
    prompt, answer = [1, 2, 3, 4, 5, 6, 9], [1, 2, 3, 4, 8, 5, 6]
    # after 1, which the prompt's pass emitted: 2 3 4 are right, then nothing is found, then nothing is left to propose
    # pairs: nothing follows 9 1; 3 4 are right after 1 2
    assert ngram.replay(prompt, answer, ngram.MATCHERS["automaton"](prompt, answer), 3) == (3, 3, 3)
    assert ngram.replay(prompt, answer, ngram.MATCHERS["n-grams"](prompt, answer), 3) == (
        4,
        3,
        2,
    )  # a single `1` is no pair
    assert ngram.replay(prompt, answer[:1], ngram.MATCHERS["lookup"](prompt, answer), 3) == (0, 0, 0)


def test_ngrams_take_the_newest_or_the_oldest():
    for newest, wanted in ((True, [4, 2]), (False, [3, 2])):
        assert ngram.Ngrams(3, 1, newest).follow([1, 2, 3, 2, 4, 2], 2) == wanted


def test_times_are_of_a_proposal():
    row = ngram.times("loop", np.arange(60) % 7, 2, 5, rounds=10)
    assert row["tokens"] == 60 and 0 < row["microseconds"]["min"] <= row["microseconds"]["median"]


def test_benchmark_writes_its_rows(tiny_folder, tmp_path, capsys):
    data, out = tmp_path / "copies.jsonl", tmp_path / "out.json"
    data.write_text('{"prompt": "abcabcabc"}\n')
    options = ["--target", str(tiny_folder), "--data", str(data), "--max-tokens", "8", "-k", "2", "--json", str(out)]
    ngram.main(options)
    read = json.loads(out.read_text())
    assert [r["matcher"] for r in read["rows"]] == list(ngram.MATCHERS)
    assert all(1 <= r["tokens_per_round"] <= 3 for r in read["rows"])
    assert {t["tokens"] for t in read["times"]} == {ngram.LONG} and "microseconds" in capsys.readouterr().out
