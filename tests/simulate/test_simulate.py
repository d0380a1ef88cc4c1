"""The simulator against its formulas, at limits that are known, and on data of known constants."""

import json
import math
import subprocess
import sys
from dataclasses import replace

import pytest

from ssd.simulate import announcement, formula, paper, questions
from ssd.simulate.__main__ import main
from ssd.simulate.fit import Fit, fit, plain_and_speculative, unpack
from ssd.simulate.hardware import GPUS, gpu
from ssd.simulate.lanes import ABANDON, Plan, simulate
from ssd.simulate.models import MODELS, model
from ssd.simulate.outcomes import Outcomes, allocate, exponent_of, from_rates, law
from ssd.simulate.published import PAIRS, SPEEDS
from ssd.simulate.roofline import Constants, Roofline
from ssd.simulate.serving import Load, serve
from ssd.simulate.statistics import Statistics

K = 5


class Fixed:
    """A pass takes the same time whatever it holds."""

    def __init__(self, verify, draft):
        self.seconds = verify, draft

    def verify(self, sequences, rows):
        return self.seconds[0]

    def draft(self, sequences, rows):
        return self.seconds[1]


@pytest.fixture(scope="module")
def fitted():
    return fit()


def sure(accept: float, hit: float, k: int = K) -> Outcomes:
    return from_rates([accept], hit, k)


# ---- the law of outcomes ----


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
    # (F + 1)^-(1 + r) by the chance of the node is the same everywhere: F + 1 goes with a^(n / (1 + r))
    for n in range(k):
        assert (fan_out[n] + 1) / (fan_out[0] + 1) == pytest.approx(a ** (n / (1 + r)), abs=0.1)
    best = max((law(a, r, [i, j, 6 - i - j]).hit_rate(2), [i, j, 6 - i - j]) for i in range(7) for j in range(7 - i))
    assert law(a, r, allocate(a, r, 2, 6)).hit_rate(2) == pytest.approx(best[0])


def test_exponent_is_found_again():
    assert exponent_of(0.7, [3] * 6, law(0.7, 1.3, [3] * 6).hit_rate(5)) == pytest.approx(1.3)


# ---- simulation and formulas ----


def test_plain_decoding_and_speculation_are_the_formulas():
    times = Fixed(1.0, 0.1)
    for batch in (1, 3):
        assert simulate(times, Plan("ar"), batch=batch, rounds=10).speed == pytest.approx(formula.ar(times, batch))
        for accept, tokens in ((1.0, K + 1), (0.0, 1)):
            tally = simulate(times, Plan("sd", K), sure(accept, 0), batch, rounds=10)
            assert tally.speed == pytest.approx(formula.sd(times, sure(accept, 0), K, batch))
            assert tally.tokens == 10 * batch * tokens


@pytest.mark.parametrize("draft", [0.01, 0.1, 0.3])  # builds that fit into a verification, and one that does not
@pytest.mark.parametrize("hit", [0.0, 1.0])
@pytest.mark.parametrize("accept", [0.0, 1.0])
def test_theorem_7_where_nothing_is_left_to_chance(draft, hit, accept):
    rounds, times, outcomes = 200, Fixed(1.0, draft), sure(accept, hit)
    tally = simulate(times, Plan("ssd", K, 12, abandon="now"), outcomes, rounds=rounds)
    build, retry = max(1.0, (K + 1) * draft), 1 + K * draft
    # the first round has no speculation yet and is followed by a retry; the last one waits for a build like the others
    assert tally.seconds == pytest.approx(retry + (rounds - 1) * (build if hit else retry))
    assert tally.hits == (rounds - 1) * hit and tally.misses == (rounds - 1) * (1 - hit)
    steady = (tally.tokens - 1) / (tally.seconds - retry)  # without the first round
    assert steady == pytest.approx(formula.ssd(times, outcomes, K, 12), rel=1e-9)


@pytest.mark.parametrize("abandon", ABANDON)
@pytest.mark.parametrize("draft", [0.1, 0.3])
def test_theorem_7_in_the_mean(abandon, draft):
    times, outcomes, rounds = Fixed(1.0, draft), law(0.8, 1.0, [3] * (K + 1)), 3000
    tally = simulate(times, Plan("ssd", K, 18, abandon=abandon), outcomes, rounds=rounds)
    build = max(1.0, (K + 1) * draft)
    late = {"now": 1.0, "pass": math.ceil(1.0 / draft - 1e-9) * draft if build > 1 else 1.0, "never": build}[abandon]
    seconds = tally.hits * build + tally.misses * (late + K * draft) + 1 + K * draft  # and the first round
    assert tally.seconds == pytest.approx(seconds, abs=build)
    p = outcomes.hit_rate(K)
    assert abs(tally.hit_rate - p) < 4 * math.sqrt(p * (1 - p) / rounds)
    assert abs(tally.tokens / rounds - outcomes.expected(K)) < 4 * 2 / math.sqrt(rounds)
    if abandon != "pass":
        assert tally.speed == pytest.approx(formula.ssd(times, outcomes, K, 18, stalls=abandon == "never"), rel=0.04)


@pytest.mark.parametrize("batch", [2, 4])
def test_batches_wait_or_go_on(batch):
    times, outcomes = Fixed(1.0, 0.1), law(0.8, 1.0, [3] * (K + 1))
    speed = {
        w: simulate(times, Plan("ssd", K, 18, wait=w), outcomes, batch, 1000).speed for w in ("any", "all", "never")
    }
    assert speed["any"] == pytest.approx(formula.ssd(times, outcomes, K, 18, batch), rel=0.04)
    assert speed["never"] == pytest.approx(formula.ssd_going_on(times, outcomes, K, 18, batch), rel=0.04)
    assert speed["any"] < speed["all"]


def test_branches_are_taken_as_far_as_they_stand():
    """A verification of 1 and passes of 0.3: the pass over what is new and two levels are done when it ends."""
    tally = simulate(Fixed(1.0, 0.3), Plan("ssd", K, 8, whole=False, abandon="now"), sure(1.0, 1.0), rounds=101)
    assert tally.depths == K + 99 * 2 and tally.hits == 100
    late = simulate(Fixed(1.0, 0.6), Plan("ssd", K, 8, whole=False), sure(1.0, 1.0), rounds=50)
    assert late.hits == 0  # nothing but the first pass is done: a miss, however well it was predicted


def test_same_seed_same_run():
    run = [simulate(Fixed(1, 0.1), Plan("ssd", 3, 8), law(0.7, 1, [2] * 4), 2, 200, seed) for seed in (5, 5, 6)]
    assert run[0] == run[1] != run[2]


def test_plans_name_what_is_wrong():
    for bad, text in (({"mode": "x"}, "mode: got 'x'"), ({"wait": "x"}, "wait: got 'x'"), ({"k": 0}, "k: got 0")):
        with pytest.raises(ValueError, match=text):
            Plan(**{"mode": "ssd", "k": 3} | bad)


# ---- costs ----


def test_shapes_have_the_published_numbers_of_weights():
    billions = {name: (m.weights + m.hidden * m.vocab) / 1e9 for name, m in MODELS.items()}  # with the embedding table
    for name, whole in (("llama-3.1-8b", 8.03), ("llama-3.1-70b", 70.55), ("qwen3-32b", 32.76)):
        assert billions[name] == pytest.approx(whole, rel=2e-3)
    tied = {"llama-3.2-1b": 1.236, "qwen3-0.6b": 0.596, "smollm2-135m": 0.1345}  # the table is the output matrix
    for name, whole in tied.items():
        assert MODELS[name].weights / 1e9 == pytest.approx(whole, rel=2e-3)
    assert MODELS["llama-3.1-70b"].kv_bytes == 2 * 80 * 8 * 128 * 2


def test_every_figure_of_a_gpu_has_a_source():
    for g in GPUS.values():
        assert set(g.source) == {"bandwidth", "matrix", "memory", "link", "launch", "all_reduce"}
        assert all(len(text) > 20 for text in g.source.values())


def test_a_pass_by_hand_and_without_limits():
    c = Constants(0.5, 2e-3, 1e-3)
    times = Roofline(gpu("h100"), model("llama-3.1-70b"), model("llama-3.2-1b"), c, 4, 100)
    t = times.target
    seconds = (t.weight_bytes + 100 * t.kv_bytes) / (0.5 * 3.35e12 * 4) + 80 * (9 * 1.3e-6 + 2 * 4.8e-6) + 2e-3
    assert times.verify(1, 1) == pytest.approx(seconds)
    assert times.verify(1, 4000) > 4 * times.verify(1, 1)  # there the matrix rate decides
    free = replace(times.gpu, bandwidth=math.inf, matrix=math.inf, launch=0.0)
    assert replace(times, gpu=free, gpus=1).verify(8, 64) == pytest.approx(2e-3)
    assert replace(times, gpus=1).fits() is False and times.fits()


# ---- the fit ----


def test_fit_finds_the_constants_that_made_the_data(fitted):
    x = (0.7, 3e-3, 0.9e-3, 2.2, 1.1, 1.6, 2.6, -0.4, 0.8)
    constants, acceptance = unpack(x)
    values = plain_and_speculative(constants, acceptance)
    speeds = {
        name: {"ar": (values[5 * i],) * 4, "sd": tuple(values[5 * i + 1 : 5 * i + 5])} for i, name in enumerate(PAIRS)
    }
    known = Fit(constants, acceptance, x[-2], x[-1], 0.9)
    pair = PAIRS["llama"]
    speeds["llama"]["ssd"] = tuple(
        formula.ssd(known.times(pair), known.outcomes("llama", w, pair.k_ssd, 3), pair.k_ssd, 24, stalls=True)
        for w in range(4)
    )
    found = fit(speeds, dict(zip(("verify", "draft"), values[-2:], strict=True)))
    assert found.constants.bandwidth == pytest.approx(0.7, rel=1e-3)
    assert found.constants.host == pytest.approx(3e-3, rel=1e-3)
    assert found.constants.draft_host == pytest.approx(0.9e-3, rel=1e-3)
    assert found.exponent == pytest.approx(0.9, rel=1e-3)
    for name in PAIRS:
        assert found.acceptance[name] == pytest.approx(acceptance[name], rel=1e-3)


def test_published_rows_of_the_other_pair_are_predicted(fitted):
    rows = paper.rows(fitted, rounds=400)
    keys = {"source", "pair", "method", "workload", "published", "predicted", "error"}
    assert len(rows) == 2 * (1 + 4 + 4) + 4 + 5 and all(keys <= set(r) for r in rows)
    for r in rows:
        assert r["error"] == pytest.approx(r["predicted"] / r["published"] - 1)
    # by the formulas, which have no noise: a fit that is off, or a law that does not carry over, shows here
    of = {(r["pair"], r["method"], r["workload"]): r["formula"] / r["published"] - 1 for r in rows}
    qwen = [e for (pair, method, _), e in of.items() if "Qwen" in pair and "SSD" in method]
    assert len(qwen) == 8 and max(map(abs, qwen)) < 0.1
    assert max(abs(e) for (_, method, _), e in of.items() if method.startswith(("AR", "SD"))) < 0.02
    assert SPEEDS["qwen"]["ssd"] not in vars(fitted).values()


def test_announcement_rows(fitted):
    rows = {(r["quantity"], r["workload"]): r for r in announcement.rows(fitted, rounds=300)}
    r = rows["SSD / SD", "HumanEval"]
    assert r["published"] == pytest.approx(61.2 / 28.7)
    # hiding all drafting and transfer gives 1 / 0.55 at the most, so the announced ratio cannot come from that alone
    assert r["from_its_shares"] < 1 / 0.55 < r["published"]
    shares = [r["from_constants"] for (q, _), r in rows.items() if q.startswith("share of the time")]
    assert len(shares) == 3 and sum(shares) == pytest.approx(1)
    all_branches = rows["more computation with 4 branches in all, of both models", "HumanEval"]
    target, draft = (2 * MODELS[m].weights for m in ("llama-3.1-70b", "llama-3.2-1b"))
    assert all_branches["from_constants"] == pytest.approx((7 + 18) * draft / (7 * target + 6 * draft), rel=0.02)


# ---- questions ----


def test_the_best_plan_is_the_best_of_those_tried(fitted):
    times = fitted.times(PAIRS["llama"])
    stats = Statistics(0.8, 1.0, "")
    choice = questions.best(times, stats, "sd")
    assert choice.plan.k == max(range(1, questions.LONGEST + 1), key=lambda k: formula.sd(times, stats.outcomes(k), k))
    assert questions.best(times, Statistics(0.0, 1.0, ""), "sd").plan.k == 1
    rows, answer = questions.ask_best({"bad": (times, Statistics(0.0, 1.0, ""))}, 1, None, None)
    assert rows[-1]["mode"] == "sd" and rows[0]["tokens/s"] >= rows[1]["tokens/s"]


def test_serving_alone_is_a_request_after_another(fitted):
    """Arrivals far apart: a latency is the prompt's pass and the answer's rounds."""
    load = Load(rate=0.01, requests=8, prompt=64, answer=11)
    found = serve(Fixed(1.0, 0.1), Plan("ar"), None, load, 1)
    assert found["latency_p50"] == pytest.approx(11.0) and found["first_token_p50"] == pytest.approx(1.0)
    busy = Load(rate=1.0, requests=60, prompt=64, answer=11, max_batch=2)
    one, four = (serve(Fixed(1.0, 0.1), Plan("ar"), None, busy, n) for n in (1, 4))
    assert one["latency_p90"] > 2 * four["latency_p90"] and one["answers_per_second"] < 0.5 * one["arrivals_per_second"]
    sure_sd = serve(Fixed(1.0, 0.1), Plan("sd", K), sure(1.0, 0), load, 1)
    assert sure_sd["latency_p50"] == pytest.approx(1 + 2 * 1.5)  # ten tokens in two rounds


# ---- the command ----


def call(capsys, *arguments):
    code = main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("question", ["best", "gpu", "batch", "replicas"])
def test_questions_are_answered(question, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(questions, "ROUNDS", 100)
    monkeypatch.setattr(questions, "LONGEST", 3)
    file = tmp_path / "a.json"
    more = ["--requests", 20, "--replicas", "1,2"] if question == "replicas" else []
    code, out, _ = call(capsys, "--ask", question, "--gpu", "h200", "--workload", "GSM8K", "--json", file, *more)
    report = json.loads(file.read_text())
    assert code == 0 and out.startswith("| ") and report["answer"] in out
    assert report["rows"] and report["constants"]["host"] > 0
    assert report["statistics"]["llama-3.2-1b"]["acceptance"] > 0.9


def test_tables_are_written(capsys, tmp_path):
    code, out, _ = call(capsys, "--table", "hardware")
    assert code == 0 and all(name in out for name in GPUS) and "data sheet" in out
    file = tmp_path / "p.json"
    assert call(capsys, "--table", "announcement", "--rounds", 50, "--json", file)[0] == 0
    assert len(json.loads(file.read_text())["rows"]) > 20


def test_statistics_of_a_run(capsys, tmp_path):
    run = {"config": {"k": 4, "branches": 12}, "stats": {"acceptance_rate": 0.7, "hit_rate": 0.8}}
    (tmp_path / "run.json").write_text(json.dumps(run))
    file = tmp_path / "a.json"
    pair = ["--target", "llama-3.1-8b", "--draft", "llama-3.2-1b", "--gpus", 1, "--stats", tmp_path / "run.json"]
    assert call(capsys, "--ask", "best", *pair, "--json", file)[0] == 0
    stats = json.loads(file.read_text())["statistics"]["llama-3.2-1b"]
    assert stats["acceptance"] == 0.7
    fan_out = allocate(0.7, 1.0, 4, 12)
    assert law(0.7, stats["exponent"], fan_out).hit_rate(4) == pytest.approx(0.8)


@pytest.mark.parametrize(
    "arguments,words",
    [
        (["--ask", "best", "--gpu", "B100"], "--gpu: got 'B100', wanted one of A100, H100, H200, B200"),
        (["--ask", "best", "--target", "gpt-9"], "--target: got 'gpt-9', wanted a folder with a config.json or one of"),
        (["--ask", "best", "--draft", "x"], "--draft: got 'x'"),
        (["--ask", "best", "--draft", "llama-3.1-8b"], "--acceptance: nothing is published of"),
        (["--ask", "best", "--acceptance", "1.5"], "--acceptance: got 1.5"),
        (["--ask", "best", "--draft", "llama-3.2-1b,llama-3.1-8b", "--acceptance", "0.8"], "for each draft"),
        (["--ask", "best", "--gpus", "1"], "--gpus: llama-3.1-70b does not fit into 1 H100"),
        (["--ask", "best", "--gpus", "0"], "--gpus: got 0, wanted a whole number, at least 1"),
        (["--ask", "best", "--gpus", "x"], "--gpus: got x, wanted a whole number"),
        (["--ask", "best", "-k", "64"], "-k: got 64, wanted a whole number, 1 to 63"),
        (["--ask", "best", "--context", "nan"], "--context: got nan, wanted a number above 0"),
        (["--ask", "best", "--set", "host=inf"], "--set: got 'host=inf'"),
        (["--ask", "best", "--draft", "qwen3-0.6b"], "--draft: qwen3-0.6b has 151936 tokens, wanted the 128256 of"),
        (["--ask", "best", "--draft", ","], "--draft: got ''"),
        (["--ask", "best", "--acceptance", "0.9,0.8"], "--acceptance: got 0.9,0.8"),
        (["--ask", "replicas", "--rate", "inf"], "--rate: got inf"),
        (["--ask", "replicas", "--seed", "-3"], "--seed: got -3"),
        (["--ask", "best", "--set", "speed=1"], "--set: got 'speed=1', wanted NAME=VALUE"),
        (["--ask", "best", "--set", "bandwidth=2"], "--set: got 'bandwidth=2'"),
        (["--ask", "best", "--exponent", "-1"], "--exponent: got -1"),
        (["--ask", "replicas", "--replicas", "1,x"], "--replicas: got 1,x"),
        (["--ask", "replicas", "--rate", "0"], "--rate: got 0"),
        (["--ask", "best", "--stats", "BROKEN"], "is not a JSON object"),
        (["--ask", "best", "--draft", "llama-3.2-1b,llama-3.1-8b", "--stats", "EMPTY"], "--stats: got one run for"),
        (["--ask", "best", "--stats", "EMPTY"], "holds no acceptance_rate"),
        (["--ask", "best", "--stats", "ABSENT"], "ABSENT: No such file"),
        (["--measured", "BROKEN"], "is not a JSON object"),
        (["--measured", "EMPTY"], "wanted the --json of `python -m bench.decode"),
        (["--table", "paper", "--json", "no/such/folder/x.json"], "--json: cannot write"),
        (["--table", "paper", "--json", "/proc/x.json"], "--json: cannot write /proc/x.json"),
        (["--table", "paper", "--json", ""], "--json: got an empty text"),
        (["--table", "other"], "argument --table: invalid choice: 'other'"),
        ([], "one of the arguments --table --ask --measured is required"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "BROKEN").write_text('{"rows": [')
    (tmp_path / "EMPTY").write_text('{"rows": [], "costs": []}')
    code, out, err = call(capsys, *arguments)
    assert (code, out) == (2, "") and err.startswith("ssd: ") and err.count("\n") == 1 and words in err


def test_a_reader_that_has_seen_enough():
    command = [sys.executable, "-m", "ssd.simulate", "--table", "hardware"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    err = process.stderr.read().decode()
    assert (process.wait(60), err) == (0, "")


# ---- this machine ----


def bench_file(tmp_path):
    """Of bench.decode: a pass of n rows takes 10 + n ms, one of the draft 1 ms, and what is beside them 0.5 ms or,
    with sd, 0.9 ms."""
    line = {str(n): (10 + n) / 1e3 for n in (1, 5, 12)}
    flat = {str(n): 1e-3 for n in (1, 5, 12)}
    costs = {"precision": "bf16", "cores": 2, "workload": "code", "target_together": line, "target_apart": line}
    costs |= {"draft_together": flat, "draft_apart": flat}
    ar = {"decode_passes": 100, "decode_tokens": 100, "decode_forward_seconds": 1.1, "decode_seconds": 1.15}
    ar["decode_draft_seconds"] = 0.0
    # half of the rounds verify three tokens, drafted in three passes, and accept one; half verify none
    sd = {"shapes": {"3 1": 50, "0 0": 50}, "draft_passes": 150, "draft_rows": 150, "decode_tokens": 150}
    sd |= {"decode_draft_seconds": 50 * 3e-3, "decode_passes": 100}
    sd["decode_forward_seconds"] = 50 * 14e-3 + 50 * 11e-3
    sd["decode_seconds"] = sd["decode_draft_seconds"] + sd["decode_forward_seconds"] + 100 * 0.9e-3
    # four tokens verified and accepted; half of the outcomes hit, after the others four passes for a chain, which begin
    # when the pass that runs is over: 1 ms each, at 15.5 ms half of one is left
    ssd = {"shapes": {"4 4": 100}, "hits": 50, "misses": 50, "retries": 50, "wait_seconds": 50 * 4.5 / 1e3}
    ssd |= {"draft_passes": 100, "draft_rows": 800, "decode_passes": 100, "decode_tokens": 500}
    ssd |= {"decode_forward_seconds": 1.5, "decode_draft_seconds": ssd["wait_seconds"]}
    ssd["decode_seconds"] = 100 * 15.5 / 1e3 + ssd["wait_seconds"]
    common = {"system": "ssd", "precision": "bf16", "cores": 2, "workload": "code"}
    rows = [common | {"mode": m, "counts": c} for m, c in (("ar", ar), ("sd", sd), ("ssd", ssd))]
    file = tmp_path / "decode.json"
    file.write_text(json.dumps({"rows": rows, "costs": [costs]}))
    return file


def test_measured_costs_give_the_measured_speeds(tmp_path, capsys):
    out = tmp_path / "out.json"
    code, text, _ = call(capsys, "--measured", bench_file(tmp_path), "--rounds", 2000, "--json", out)
    rows = {r["mode"]: r for r in json.loads(out.read_text())["rows"]}
    assert code == 0 and "Error by mode" in text
    assert rows["ar"]["predicted"] == pytest.approx(rows["ar"]["measured"]) == pytest.approx(1000 / 11.5)
    assert rows["sd"]["error"] == pytest.approx(0, abs=0.03)
    assert rows["ssd"]["error"] == pytest.approx(0, abs=0.03) and rows["ssd"]["hit_rate"] == pytest.approx(
        0.5, abs=0.04
    )
    for mode in ("sd", "ssd"):
        assert rows[mode]["wait_ms"] == pytest.approx(rows[mode]["wait_ms_measured"], rel=0.25)
