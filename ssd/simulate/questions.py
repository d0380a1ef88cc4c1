"""Answers to questions before a purchase: settings of a pair, a GPU for the draft or the target, batches, replicas."""

from dataclasses import dataclass, replace

from . import formula
from .lanes import Plan, simulate
from .roofline import Roofline
from .serving import Load, serve
from .statistics import Statistics

LONGEST = 12  # longest speculation that is tried
PER_NODE = (1, 2, 3, 4, 6, 8)  # branches that are tried, for each of the K + 1 nodes of a speculation
ROUNDS = 3000  # rounds of a simulated run, divided by the batch
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Choice:
    """A plan and what the simulation gives for it."""

    plan: Plan
    speed: float  # tokens a second, all sequences together
    hit_rate: float | None
    fan_out: list[int]  # bonus tokens prepared for, by accepted tokens

    def columns(self, name: str = "") -> dict:
        """The columns of a table, under names that begin with `name`."""
        p = self.plan
        out = {f"{name}tokens/s": self.speed}
        if p.k:
            out[f"{name}K"] = p.k
        if p.mode == "ssd":
            out |= {f"{name}branches": p.branches, f"{name}miss": "retry" if p.wait == "any" else "go on"}
        return out


def best(times: Roofline, stats: Statistics | None, mode: str, batch: int = 1, k: int | None = None,
         branches: int | None = None) -> Choice:  # fmt: skip
    """The plan of a mode that is fastest by the formulas. k and branches, if given, are not varied."""
    if mode == "ar":
        return Choice(Plan("ar"), formula.ar(times, batch), None, [])
    found = []
    for length in range(1, LONGEST + 1) if k is None else (k,):
        if mode == "sd":
            found.append((formula.sd(times, stats.outcomes(length), length, batch), Plan("sd", length)))
            continue
        for m in sorted({n * (length + 1) for n in PER_NODE} | {4, 8}) if branches is None else (branches,):
            outcomes = stats.outcomes(length, m)
            for wait, of in (("any", formula.ssd), ("never", formula.ssd_going_on)):
                found.append((of(times, outcomes, length, m, batch), Plan("ssd", length, m, wait=wait)))
    plan = max(found, key=lambda pair: pair[0])[1]
    tally = simulate(times, plan, stats.outcomes(plan.k, plan.branches), batch, max(ROUNDS // batch, 100))
    fan_out = stats.fan_out(plan.k, plan.branches) if mode == "ssd" else []
    return Choice(plan, tally.speed, tally.hit_rate, fan_out)


def ask_best(drafts: dict[str, tuple[Roofline, Statistics]], batch: int, k, branches) -> tuple[list[dict], str]:
    """(rows by draft and mode, the fastest first; the answer in a sentence). drafts: (times, statistics) by name."""
    rows = []
    for name, (times, stats) in drafts.items():
        plain = best(times, stats, "ar", batch)
        for mode in ("ar", "sd", "ssd"):
            if mode == "ar" and rows:
                continue
            choice = plain if mode == "ar" else best(times, stats, mode, batch, k, branches)
            gpus = times.gpus + (mode == "ssd")
            row = {"mode": mode, "draft": None if mode == "ar" else name, "GPUs": gpus} | choice.columns()
            row |= {"fan-out": " ".join(map(str, choice.fan_out)) or None, "hit rate": choice.hit_rate}
            rows.append(row | {"over AR": choice.speed / plain.speed, "tokens/s a GPU": choice.speed / gpus})
    rows.sort(key=lambda r: -r["tokens/s"])
    top = rows[0]
    if top["mode"] == "ar":
        return rows, f"Plain decoding is fastest, {top['tokens/s']:.0f} tokens/s."
    how = f" and {top['branches']} branches (by accepted tokens: {top['fan-out']})" if top["mode"] == "ssd" else ""
    return rows, (
        f"{top['mode'].upper()} with {top['draft']}, K = {top['K']}{how}: {top['tokens/s']:.0f} tokens/s, "
        f"{top['over AR']:.2f} times plain decoding."
    )


def ask_gpu(times: Roofline, stats: Statistics, batch: int, k, branches, most: int = 8) -> tuple[list[dict], str]:
    """(rows, answer): speeds of a number of GPUs that are used in three ways. All of them decode plainly; or all hold
    the target and one of them the draft too; or one has the draft alone."""
    rows = []
    for n in range(2, most + 1):
        whole = replace(times, gpus=n)
        less = replace(times, gpus=n - 1)
        fits = {"AR": whole.fits(batch), "SD": whole.fits(batch), "SSD": less.fits(batch)}
        speed = {
            name: best(t, stats, name.lower(), batch, k, branches).speed if fits[name] else None
            for name, t in (("AR", whole), ("SD", whole), ("SSD", less))
        }
        row = {"GPUs": n} | {f"{name} tokens/s": value for name, value in speed.items()}
        known = {name: v for name, v in speed.items() if v}
        row["SSD / SD"] = speed["SSD"] / speed["SD"] if speed["SSD"] and speed["SD"] else None
        rows.append(row | {"fastest": max(known, key=known.get) if known else "does not fit"})
    won = [r["GPUs"] for r in rows if r["fastest"] == "SSD"]
    lost = [r["GPUs"] for r in rows if r["fastest"] in ("AR", "SD")]
    return rows, (
        f"Of {rows[0]['GPUs']} to {most} GPUs in all, one for the draft alone is faster than one more for the target "
        f"with {numbers(won)}, and slower with {numbers(lost)}."
    )


def numbers(values: list[int]) -> str:
    return ", ".join(map(str, values)) or "none of them"


def ask_batch(times: Roofline, stats: Statistics, k, branches) -> tuple[list[dict], str]:
    """(rows, answer): the best plan of each mode for every batch, compared in all and by GPU, as SSD has one more."""
    rows = []
    for batch in BATCHES:
        if not times.fits(batch):
            break
        choices = {mode: best(times, stats, mode, batch, k, branches) for mode in ("ar", "sd", "ssd")}
        row = {"batch": batch}
        for mode, choice in choices.items():
            row |= choice.columns(f"{mode.upper()} ")
        ar, sd, ssd = (c.speed for c in choices.values())
        row |= {"SSD / SD": ssd / sd, "SSD / AR": ssd / ar}
        rows.append(row | {"SSD / best other, a GPU": ssd / (times.gpus + 1) * times.gpus / max(ar, sd)})
    return rows, (
        f"SSD is slower than SD {first(rows, 'SSD / SD')}, slower than AR {first(rows, 'SSD / AR')}; counted by GPU it "
        f"is slower than the better of both {first(rows, 'SSD / best other, a GPU')}."
    )


def first(rows: list[dict], column: str) -> str:
    lost = [r["batch"] for r in rows if r[column] < 1]
    return f"from batch {lost[0]} on" if lost else f"at no batch up to {rows[-1]['batch']}"


def ask_replicas(times: Roofline, stats: Statistics, load: Load, counts: list[int], batch: int, k, branches, seed: int):
    """(rows, answer): latencies under Poisson arrivals, by mode and number of replicas; plans are the best for
    `batch`."""
    rows = []
    for mode in ("ar", "sd", "ssd"):
        plan = best(times, stats, mode, batch, k, branches).plan
        for n in counts:
            found = serve(times, plan, stats.outcomes(plan.k, plan.branches) if plan.k else None, load, n, seed)
            gpus = n * (times.gpus + (mode == "ssd"))
            keeps_up = found["answers_per_second"] > 0.9 * found["arrivals_per_second"]
            rows.append({"mode": mode, "replicas": n, "GPUs": gpus, "keeps up": "yes" if keeps_up else "no"} | found)
    kept = [r for r in rows if r["keeps up"] == "yes"]
    if not kept:
        return rows, "None of them keeps up with the arrivals."
    top = min(kept, key=lambda r: r["latency_p99"])
    cheap = min(kept, key=lambda r: (r["GPUs"], r["latency_p99"]))
    return rows, "; ".join(
        f"{what}: {r['mode'].upper()} on {r['replicas']} ({r['GPUs']} GPUs), p99 {r['latency_p99']:.2f} s"
        for what, r in (("fastest", top), ("fewest GPUs", cheap))
    )
