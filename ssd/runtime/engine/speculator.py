"""The interface between an engine and whoever speculates, and the record of one round."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from ssd.kernels import Verified

from ..sampling.logprobs import Logprobs
from .features import Features
from .scheduler import Plan
from .sequence import Sequence
from .trace import Trace
from .tree import Tree


class Proposal(NamedTuple):
    """What a speculator wants verified."""

    trees: list[Tree | None]  # one for each sequence of the plan, None: nothing
    seconds: float  # that the proposal took


@dataclass(slots=True)
class Part:
    """One sequence in a round."""

    sequence: Sequence
    count: int  # rows of known tokens in the pass
    tree: Tree | None
    first_row: int  # of the pass
    row: int | None = None  # of Verified; None: nothing was sampled for this sequence
    path: list[int] | None = None  # accepted nodes from the root down; None: nothing was sampled
    emitted: list[int] = ()  # tokens of the accepted nodes, then the bonus token
    logprobs: list[Logprobs] | None = None  # one for each emitted token where asked for

    @property
    def rows(self) -> range:
        """Rows of the pass, those of the tree included."""
        return range(self.first_row, self.first_row + self.count + len(self.tree or ()))


class Stages(NamedTuple):
    """When the stages of a round ended, in seconds of perf_counter."""

    began: float  # the proposal was made
    filled: float  # the batch was filled
    forwarded: float
    verified: float


@dataclass
class Round:
    """One verification: what was proposed, and what the target made of it, before the sequences move on."""

    plan: Plan
    parts: list[Part]
    verified: Verified | None  # in host memory, a row for each part that sampled; None where none did
    features: torch.Tensor | None  # float32 [rows, layers * hidden size] of the target, where somebody reads them
    stages: Stages
    draft_seconds: float  # of the proposal

    @property
    def seconds(self) -> float:
        """What the batch, its forward pass and its verification took."""
        return self.stages.verified - self.stages.began

    def __iter__(self) -> Iterator[Part]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)


class Speculator(Protocol):
    """Proposes trees and observes what became of them; the engine verifies.

    layers: layers of the target whose features are read. runner: the DraftRunner at work, None where no model drafts.
    """

    layers: tuple[int, ...]
    runner: object | None

    def attach(self, features: Features) -> None:
        """Take the store in which the engine keeps the target's features."""

    def warm_up(self) -> Iterator[None]:
        """Run the passes that compile a draft's kernels, one at each step."""

    def propose(self, plan: Plan) -> Proposal:
        """Return a tree for each sequence of the plan that decodes; only chains where the pass holds a prompt."""

    def observe(self, round: Round) -> None:
        """Learn from a round, before its sequences move on."""

    def release(self, sequence: Sequence) -> None:
        """Forget a sequence that ended or lost its pages."""

    def pause(self) -> None:
        """Rest while another speculator is in charge; the next proposal catches up."""

    def close(self) -> None:
        """Stop whatever runs beside the engine."""

    def record(self, trace: Trace) -> None:
        """Write spans into a trace from now on."""

    def stats(self) -> dict:
        """Return the statistics that this speculator adds to those of Metrics."""


class NoSpeculation:
    """Plain decoding, mode ar: proposes nothing."""

    layers: tuple[int, ...] = ()
    runner = None

    def attach(self, features: Features) -> None: ...

    def warm_up(self) -> Iterator[None]:
        return iter(())

    def propose(self, plan: Plan) -> Proposal:
        return Proposal([None] * len(plan), 0.0)

    def observe(self, round: Round) -> None: ...

    def release(self, sequence: Sequence) -> None: ...

    def pause(self) -> None: ...

    def close(self) -> None: ...

    def record(self, trace: Trace) -> None: ...

    def stats(self) -> dict:
        return {}
