"""The announcement's figures beside two predictions: from its own shares of time, and from the fitted constants."""

from dataclasses import dataclass

from scipy.optimize import brentq

from .fit import Fit
from .lanes import Plan, Tally, simulate
from .outcomes import from_rates, law
from .published import ANNOUNCED, ANNOUNCEMENT, BANDWIDTH_USE, BRANCHES, HIT_RATE, MORE_COMPUTATION, PAIRS, SHARES
from .published import WORKLOADS as PAPERS
from .roofline import Roofline

K = 6  # that of the paper's SD rows, since the announcement names none
LIKE = {"HumanEval": "HumanEval", "GSM8K": "GSM8K", "dialogue": "UltraFeedback"}  # the paper has no dialogue
RECOVERY_MS = 15.0
COLUMNS = ["quantity", "workload", "published", "from_its_shares", "from_constants", "error"]


@dataclass(frozen=True)
class Shares:
    """Times of passes in units of a verification, from the announcement's shares."""

    transfer: bool = False  # whether a verification includes transfer, as it does in synchronous rounds only

    def verify(self, sequences: int, rows: int) -> float:
        other = SHARES["transfer and synchronisation"] if self.transfer else 0.0
        return (SHARES["verification"] + other) / SHARES["verification"]

    def draft(self, sequences: int, rows: int) -> float:
        return SHARES["drafting"] / SHARES["verification"] / K


def row(quantity, workload, published, own, ours) -> dict:
    """A row of the table; its error is that of the fitted constants, relative to what was published."""
    error = ours / published - 1 if published else None
    return dict(zip(["source", *COLUMNS], (ANNOUNCEMENT, quantity, workload, published, own, ours, error), strict=True))


def by_shares(ratio: float, rounds: int) -> tuple[float, float]:
    """(SD / AR, SSD / AR) from the announcement's shares, at the acceptance that its own SD / AR implies."""
    times = Shares(transfer=True)
    expected = ratio * (K * times.draft(1, 1) + times.verify(1, K + 1))
    a = brentq(lambda x: law(x, 1.0, [0] * (K + 1)).expected(K) - expected, 0.0, 1.0)
    outcomes = from_rates([a], HIT_RATE, K)
    sd = simulate(times, Plan("sd", K), outcomes, rounds=rounds).speed
    return sd, simulate(Shares(), Plan("ssd", K, BRANCHES), outcomes, rounds=rounds).speed


def runs(fit: Fit, workload: str, rounds: int) -> tuple[float, Tally, Tally]:
    """(AR speed, SD run, SSD run) of the 70B pair with the fitted constants."""
    pair = PAIRS["llama"]
    w = PAPERS.index(LIKE[workload])
    times = fit.times(pair)
    sd = simulate(times, Plan("sd", K), fit.outcomes("llama", w, K, 0), rounds=rounds)
    branches = pair.fan_out * (K + 1)
    plan = Plan("ssd", K, branches, abandon="never")
    return 1 / times.verify(1, 1), sd, simulate(times, plan, fit.outcomes("llama", w, K, pair.fan_out), rounds=rounds)


def more_computation(times: Roofline, branches: int) -> tuple[float, float]:
    """Additional computation of a hit round over a synchronous one, as shares of (both models' work, the draft's work).
    The draft runs over the speculation once and extends every branch K times."""
    target, draft = (m.flops(1, times.context) for m in (times.target, times.draft_model))
    more = (K + 1 + K * branches - K) * draft
    return more / ((K + 1) * target + K * draft), more / (K * draft)


def bandwidth_use(times: Roofline, tally: Tally) -> tuple[float, float]:
    """Shares of the peak bandwidth that (the target, the draft) used during a run."""

    def of(model, passes, gpus):
        read = model.weight_bytes + times.context * model.kv_bytes
        return passes * read / (tally.seconds * gpus * times.gpu.bandwidth)

    return of(times.target, tally.rounds, times.gpus), of(times.draft_model, tally.passes, 1)


def rows(fit: Fit, rounds: int = 4000) -> list[dict]:
    """Rows with the keys of COLUMNS. from_its_shares is what the announcement's shares of 35 / 55 / 10 and its hit rate
    of 82 % imply; from_constants is the simulation with the constants fitted on the paper's rows; None is unknown."""
    out = []
    times = fit.times(PAIRS["llama"])
    found = {w: runs(fit, w, rounds) for w in ANNOUNCED}
    for workload, (ar, sd, ssd) in ANNOUNCED.items():
        own = by_shares(sd / ar, rounds)
        plain, ours_sd, ours_ssd = found[workload]
        out.append(row("AR, tokens/s", workload, ar, None, plain))
        out.append(row("SD / AR", workload, sd / ar, own[0], ours_sd.speed / plain))
        out.append(row("SSD / AR", workload, ssd / ar, own[1], ours_ssd.speed / plain))
        out.append(row("SSD / SD", workload, ssd / sd, own[1] / own[0], ours_ssd.speed / ours_sd.speed))
    code = "HumanEval"
    plain, sd, ssd = found[code]
    host = sd.rounds * fit.constants.host
    ours = {"drafting": sd.draft, "verification": sd.verify - host, "transfer and synchronisation": host}
    for name, share in SHARES.items():
        out.append(row(f"share of the time without SSD: {name}", code, share, None, ours[name] / sd.seconds))
    out.append(row(f"hit rate, {BRANCHES} branches in all", code, HIT_RATE, None, four_in_all(fit)))
    fan_out = fit.outcomes("llama", PAPERS.index(code), K, BRANCHES)
    out.append(row(f"hit rate, {BRANCHES} at every node", code, HIT_RATE, None, fan_out.hit_rate(K)))
    for name, n in (("in all", BRANCHES), ("at every node", BRANCHES * (K + 1))):
        both, own = more_computation(times, n)
        text = f"more computation with {BRANCHES} branches {name}"
        out.append(row(f"{text}, of both models", code, MORE_COMPUTATION, None, both))
        out.append(row(f"{text}, of the draft", code, None, None, own))
    for name, published, tally in zip(("without SSD", "with SSD"), BANDWIDTH_USE, (sd, ssd), strict=True):
        target, draft = bandwidth_use(times, tally)
        out.append(row(f"bandwidth use of the target {name}", code, published, None, target))
        out.append(row(f"bandwidth use of the draft {name}", code, None, None, draft))
    gain = 1 / SHARES["verification"]
    out.append(row("bandwidth use, with / without SSD", code, BANDWIDTH_USE[1] / BANDWIDTH_USE[0], gain,
                   bandwidth_use(times, ssd)[0] / bandwidth_use(times, sd)[0]))  # fmt: skip
    out.append(row("recovery, ms", code, RECOVERY_MS, None, 1e3 * K * times.draft(1, 1)))
    return out


def four_in_all(fit: Fit) -> float:
    """Hit rate of the fitted law with BRANCHES branches in all, allocated by theorem 12."""
    from .outcomes import allocate

    a = fit.acceptance["llama"][PAPERS.index("HumanEval")]
    return law(a, fit.exponent, allocate(a, fit.exponent, K, BRANCHES)).hit_rate(K)
