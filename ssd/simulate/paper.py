"""The paper's speeds beside those of the simulation."""

from . import formula
from .fit import Fit, plain_and_speculative
from .lanes import Plan, simulate
from .published import BY_BATCH, BY_K, PAIRS, PAPER, RECORD, REPRODUCTION, SPEEDS, STEPS, WORKLOADS

ROUNDS = 4000
COLUMNS = ["source", "pair", "method", "workload", "role", "published", "predicted", "error", "formula", "hit_rate"]


def row(source, pair, method, workload, role, published, tally, closed) -> dict:
    """A row of the table. role: fitted or predicted; tally: the simulated run; closed: speed by the formula."""
    out = {"source": source, "pair": pair.name, "method": method, "workload": workload, "role": role}
    out |= {"published": published, "predicted": tally.speed, "error": tally.speed / published - 1, "formula": closed}
    return out | {"hit_rate": tally.hit_rate}


def ssd_row(fit: Fit, name: str, workload: int, k: int, rounds: int, batch: int = 1) -> tuple:
    """(Tally, speed by the formula) of a published pair, whose draft never abandons a build."""
    pair = PAIRS[name]
    fan_out = PAIRS[name].fan_out
    times = fit.times(pair)
    outcomes = fit.outcomes(name, workload, k, fan_out)
    branches = fan_out * (k + 1)
    tally = simulate(times, Plan("ssd", k, branches, abandon="never"), outcomes, batch, max(rounds // batch, 1))
    return tally, formula.ssd(times, outcomes, k, branches, batch, stalls=True)


def rows(fit: Fit, rounds: int = ROUNDS) -> list[dict]:
    """Rows with the keys of COLUMNS. role: whether constants were fitted on the row, or it is predicted; published,
    predicted, formula: tokens a second, by the source, the simulation and the closed form; error: relative."""
    out = []
    for name, pair in PAIRS.items():
        times = fit.times(pair)
        tally = simulate(times, Plan("ar"), rounds=10)
        out.append(row(PAPER, pair, "AR", "each", "fitted", SPEEDS[name]["ar"][0], tally, formula.ar(times)))
        for w, workload in enumerate(WORKLOADS):
            outcomes = fit.outcomes(name, w, pair.k_sd, 0)
            tally = simulate(times, Plan("sd", pair.k_sd), outcomes, rounds=rounds)
            closed = formula.sd(times, outcomes, pair.k_sd)
            out.append(
                row(PAPER, pair, f"SD, K = {pair.k_sd}", workload, "fitted", SPEEDS[name]["sd"][w], tally, closed)
            )
        for w, workload in enumerate(WORKLOADS):
            found = ssd_row(fit, name, w, pair.k_ssd, rounds)
            role = "fitted" if name == "llama" else "predicted"
            out.append(row(PAPER, pair, f"SSD, K = {pair.k_ssd}", workload, role, SPEEDS[name]["ssd"][w], *found))
    for k, published in BY_K.items():
        found = [ssd_row(fit, "qwen", w, k, rounds // 4) for w in range(len(WORKLOADS))]
        out.append(mean_row(REPRODUCTION, PAIRS["qwen"], f"SSD, K = {k}", published, found))
    for batch, published in BY_BATCH.items():
        found = ssd_row(fit, "llama", WORKLOADS.index("GSM8K"), 6, rounds, batch)
        out.append(row(RECORD, PAIRS["llama"], f"SSD, K = 6, batch {batch}", "GSM8K", "predicted", published, *found))
    return out


def mean_row(source, pair, method, published, found: list[tuple]) -> dict:
    """A row for a source that names no workload: the mean over all of them."""
    speed = sum(tally.speed for tally, _ in found) / len(found)
    hits = sum(tally.hit_rate for tally, _ in found) / len(found)
    out = {"source": source, "pair": pair.name, "method": method, "workload": "mean of the four", "role": "predicted"}
    out |= {"published": published, "predicted": speed, "error": speed / published - 1}
    return out | {"formula": sum(closed for _, closed in found) / len(found), "hit_rate": hits}


def passes(fit: Fit) -> list[dict]:
    """Milliseconds of the passes that the reproduction measured; the constants were fitted on these too."""
    verify, draft = plain_and_speculative(fit.constants, fit.acceptance)[-2:]
    both = (("verification", STEPS["verify"], verify), ("step of the draft's tree", STEPS["draft"], draft))
    return [
        {
            "source": REPRODUCTION,
            "pair": PAIRS["qwen"].name,
            "pass": name,
            "published_ms": 1e3 * p,
            "fitted_ms": 1e3 * f,
        }
        for name, p, f in both
    ]


def summary(rows: list[dict]) -> list[dict]:
    """Mean and greatest absolute error, by source, pair, method and role."""
    groups: dict[tuple, list[float]] = {}
    for r in rows:
        name = r["method"].split(",")[0] + (", batches" if r["source"] == RECORD else "")
        groups.setdefault((r["source"], r["pair"], name, r["role"]), []).append(abs(r["error"]))
    names = ("source", "pair", "method", "role")
    return [
        dict(zip(names, key, strict=True)) | {"mean_error": sum(errors) / len(errors), "greatest_error": max(errors)}
        for key, errors in groups.items()
    ]
