"""Replicas that serve requests with random arrivals."""

from collections import deque
from dataclasses import dataclass

import numpy as np
import simpy

from .lanes import Plan, Replica, Sequence, Tally
from .outcomes import Outcomes


@dataclass(frozen=True)
class Load:
    """The requests that arrive, and the largest batch of a replica."""

    rate: float  # requests a second, with Poisson arrivals
    requests: int = 400  # requests in all
    prompt: int = 256  # tokens of a prompt
    answer: int = 256  # tokens of an answer
    max_batch: int = 16  # most sequences that decode together on a replica


class Queue:
    """The requests of one replica."""

    def __init__(self, env: simpy.Environment, load: Load):
        self.env = env
        self.load = load
        self.waiting: deque[Sequence] = deque()
        self.live: list[Sequence] = []
        self.done: list[Sequence] = []
        self.news = env.event()
        self.rounds = self.served = 0

    def __len__(self) -> int:
        return len(self.waiting) + len(self.live)

    def put(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)
        if not self.news.triggered:
            self.news.succeed()

    def admit(self, replica: Replica):
        """A process that returns the sequences of the next round. It runs the prompts of new ones first, and waits
        while there are none."""
        self.live = [s for s in self.live if s.left > 0]
        while not self.live and not self.waiting:
            self.news = self.env.event()
            yield self.news
        while self.waiting and len(self.live) < self.load.max_batch:
            s = self.waiting.popleft()
            yield self.env.timeout(replica.times.verify(1, self.load.prompt))
            s.first = self.env.now
            self.live.append(s)
        self.rounds += 1
        self.served += len(self.live)
        return self.live

    def emit(self, replica: Replica, sequence: Sequence, tokens: int) -> None:
        if sequence.left > 0:
            sequence.left -= tokens
            if sequence.left <= 0:
                sequence.finished = self.env.now
                self.done.append(sequence)


def serve(times, plan: Plan, outcomes: Outcomes | None, load: Load, replicas: int, seed: int = 0) -> dict:
    """Percentiles 50, 90 and 99 of the seconds from arrival to the last token (latency) and to the first (first_token),
    arrivals and answers a second, and the mean batch of a round. A request goes to the replica that has the fewest.
    """
    env = simpy.Environment()
    rng = np.random.default_rng(seed)
    queues = [Queue(env, load) for _ in range(replicas)]
    for q in queues:
        env.process(Replica(env, times, plan, outcomes, q, rng, Tally()).run())
    gaps = rng.exponential(1 / load.rate, load.requests)

    def arrive():
        for gap in gaps:
            yield env.timeout(gap)
            min(queues, key=len).put(Sequence(left=load.answer - 1, arrived=env.now))
        while sum(len(q.done) for q in queues) < load.requests:
            yield env.timeout(0.05)

    env.run(env.process(arrive()))
    done = [s for q in queues for s in q.done]
    latency = [s.finished - s.arrived for s in done]
    first = [s.first - s.arrived for s in done]
    out = {"arrivals_per_second": len(done) / float(gaps.sum())}
    out["answers_per_second"] = len(done) / max(s.finished for s in done)
    for name, values in (("latency", latency), ("first_token", first)):
        for p in (50, 90, 99):
            out[f"{name}_p{p}"] = float(np.percentile(values, p))
    return out | {"mean_batch": sum(q.served for q in queues) / max(sum(q.rounds for q in queues), 1)}
