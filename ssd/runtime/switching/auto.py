"""Mode auto: predicts what each of the other modes would give, runs the best, and may change between rounds."""

from ..devices.threads import bind
from ..engine.scheduler import Plan
from ..engine.speculator import Proposal, Round
from ..moving_average import MovingAverage
from .cost_model import Costs
from .switch import Switch

EVERY = 24  # rounds between two decisions
MARGIN = 1.08  # by which the prediction of another mode must be better
HIT_RATE = 0.5  # assumed before one was measured
UNTRIED = 0.85  # correction of a mode that has not run yet, relative to that of the mode in use


class AutoMode(Switch):
    """Two parts: "sd", which decodes plainly where speculation does not pay, and "ssd".

    Acceptance is learnt in both, the hit rate in "ssd". A mode's prediction is corrected by what the mode gave when it
    ran. cores: those of the calling thread in each mode.
    """

    def __init__(self, sd, ssd, costs: Costs, cores: dict[str, list[int] | None], *, depth: int, branches: int):
        super().__init__({"sd": sd, "ssd": ssd}, "sd")
        self.costs, self.cores = costs, cores
        self.depth, self.branches = depth, branches
        self.acceptance = MovingAverage(0.03)
        self.correction = {"sd": MovingAverage(0.3), "ssd": MovingAverage(0.3)}
        self.rounds = self.tokens = self.switches = 0
        self.elapsed = 0.0
        self.sequences = 1  # of the newest pass

    def propose(self, plan: Plan) -> Proposal:
        if self.rounds >= EVERY and plan.decoding:
            self._decide()
        self.sequences = len(plan)
        return super().propose(plan)

    def observe(self, round: Round) -> None:
        super().observe(round)
        if not round.plan.decoding:
            return
        self.rounds += 1
        self.elapsed += round.seconds + round.draft_seconds
        for part in round:
            self.tokens += len(part.emitted)
            if part.tree:
                for _ in part.path:
                    self.acceptance.add(1.0)
                if (part.path[-1] if part.path else -1) in part.tree.parents:
                    self.acceptance.add(0.0)

    def predictions(self) -> dict[str, float]:
        """Predicted tokens per second and sequence of each mode."""
        a, sequences = min(self.acceptance.get(0.5), 0.99), self.sequences
        p = self.parts["ssd"].counts.hit_rate
        p = HIT_RATE if p is None else p
        raw = {
            "sd": self.costs.sd(a, sequences),
            "ssd": self.costs.ssd(a, p, self.depth, self.branches, sequences),
        }
        known = self.correction[self.mode].get(1.0)
        defaults = {name: known if name == self.mode else UNTRIED * known for name in raw}
        return {name: value * self.correction[name].get(defaults[name]) for name, value in raw.items()}

    def _decide(self) -> None:
        speed = self.tokens / self.elapsed / max(self.sequences, 1) if self.elapsed else 0.0
        predicted = self.predictions()
        if speed:
            raw = predicted[self.mode] / self.correction[self.mode].get(1.0)
            self.correction[self.mode].add(speed / raw)
            predicted = self.predictions()
        other = "ssd" if self.mode == "sd" else "sd"
        self.rounds = self.tokens = 0
        self.elapsed = 0.0
        if predicted[other] > MARGIN * predicted[self.mode]:
            self.switch(other)
            self.switches += 1
            bind(self.cores[other])
            if self.trace:
                self.trace.instant("verify", f"mode {other}", **predicted)

    def stats(self) -> dict:
        return super().stats() | {"mode": self.mode, "mode_switches": self.switches, "predicted": self.predictions()}
