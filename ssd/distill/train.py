"""The training loop: AdamW, warm-up and cosine decay, accumulation, evaluation, checkpoints that resume exactly."""

import math
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from ssd.runtime.sampling.sampling_params import check_integer, check_number

from . import evaluate
from .batches import Batch, Data, teacher_of
from .loss import HeadLoss
from .model import Draft


@dataclass(frozen=True)
class TrainOptions:
    """How a draft is trained. Raises ValueError or TypeError that names the field."""

    steps: int = 2000  # optimiser steps
    batch_tokens: int = 4096  # tokens of a pass, padding included
    accumulate: int = 1  # passes of an optimiser step
    learning_rate: float = 1e-3  # peak learning rate
    final_rate: float = 0.02  # learning rate at the end, as a share of the peak
    warmup: int = 20  # optimiser steps until the peak
    weight_decay: float = 0.01  # weight decay of matrices
    clip: float = 1.0  # largest norm of a gradient
    own_steps: int = 4  # steps on its own features that a feature draft trains on
    step_decay: float = 0.9  # weight of such a step relative to the one before
    feature_loss: float = 0.0  # weight of the smooth-L1 loss between the draft's feature and the target's next one
    train_head: bool = True  # whether the output head is trained
    seed: int = 0  # seed of the order of the data

    def __post_init__(self):
        for name in ("steps", "batch_tokens", "accumulate", "own_steps"):
            check_integer(name, getattr(self, name), "at least 1", lambda x: x >= 1)
        for name in ("learning_rate", "clip", "step_decay"):
            check_number(name, getattr(self, name), "a number above 0", lambda x: 0 < x < math.inf)
        for name in ("final_rate", "warmup", "weight_decay", "feature_loss"):
            check_number(name, getattr(self, name), "a finite number, at least 0", lambda x: 0 <= x < math.inf)

    def rate(self, step: int) -> float:
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.learning_rate * (
            self.final_rate + (1 - self.final_rate) * 0.5 * (1 + math.cos(math.pi * min(done, 1)))
        )


@dataclass
class State:
    """The progress of a training run."""

    step: int = 0  # optimiser steps done
    passes: int = 0  # batches used
    tokens: int = 0  # tokens trained on
    seconds: float = 0.0  # time spent in steps
    curve: list = field(default_factory=list)  # one entry an evaluation


def losses(draft: Draft, b: Batch, t2d: torch.Tensor, o: TrainOptions) -> torch.Tensor:
    """The mean loss over the rows of a batch and the draft's own steps."""
    ids, p, mass = teacher_of(b, t2d)
    own = o.own_steps if draft.config.feature_layers else 1
    skip = max(0, int((b.rows % b.ids.shape[1]).min()) - own)
    outs = draft(b.ids, b.features, own, skip)
    head = draft.weights()["lm_head.weight"].to(draft.dtype)
    line = b.rows // b.ids.shape[1]
    column = b.rows % b.ids.shape[1]
    total = 0.0
    weights = sum(o.step_decay**s for s in range(own))
    for s, x in enumerate(outs):
        weight = mass * (column >= s) * (o.step_decay**s / weights / len(b.rows))
        x = x[line, column - (skip if s else 0)]  # [N, H]
        total = total + HeadLoss.apply(draft.normed(x), head, ids, p, weight)
        if o.feature_loss and draft.config.feature_layers:
            wanted = draft.entered(b.features).flatten(0, 1)[b.rows].detach()  # the input of row j + 1
            size = wanted.square().mean(-1, keepdim=True).sqrt()
            off = torch.nn.functional.smooth_l1_loss(x / size, wanted / size, reduction="none").mean(-1)
            total = total + o.feature_loss * (off * weight).sum()
    return total


class Trainer:
    """The training of a draft on `data`; `state_dict` has everything that the next step depends on."""

    def __init__(self, draft: Draft, data: Data, items: list[int], held: list[int], options: TrainOptions):
        self.draft = draft
        self.data = data
        self.items = items
        self.held = held
        self.options = options
        self.state = State()
        if not options.train_head:
            draft.weights()["lm_head.weight"].requires_grad_(False)
        groups = [
            {"params": [w for w in draft.parameters() if w.requires_grad and w.dim() == d], "weight_decay": decay}
            for d, decay in ((2, options.weight_decay), (1, 0.0))
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=options.learning_rate, betas=(0.9, 0.95), eps=1e-8)
        t2d = torch.full((draft.config.vocab_size,), -1)
        device = draft.d2t.device
        self.t2d = t2d.to(device).index_copy_(0, draft.d2t, torch.arange(len(draft.d2t), device=device))
        self._epoch: tuple[int, list] = (-1, [])

    def next_batch(self) -> Batch:
        """The next batch in the endless order that the seed determines."""
        number = 0
        at = self.state.passes
        if self._epoch[0] >= 0:
            number = self._epoch[0]
            at -= self._epoch_start
        else:
            self._epoch_start = 0
            self._epoch = (0, self._groups(0))
        while at >= len(self._epoch[1]):
            at -= len(self._epoch[1])
            self._epoch_start += len(self._epoch[1])
            number += 1
            self._epoch = (number, self._groups(number))
        self.state.passes += 1
        return self.data.batch(self._epoch[1][at]).to(self.draft.d2t.device)

    def _groups(self, number: int) -> list:
        return self.data.epoch(self.items, self.options.batch_tokens, self.options.seed, number)

    def step(self) -> float:
        """Runs one optimiser step and returns its loss."""
        o = self.options
        begin = time.perf_counter()
        total = 0.0
        for group in self.optimizer.param_groups:
            group["lr"] = o.rate(self.state.step)
        self.optimizer.zero_grad(set_to_none=True)
        for _ in range(o.accumulate):
            b = self.next_batch()
            loss = losses(self.draft, b, self.t2d, o) / o.accumulate
            loss.backward()
            total += loss.item()
            self.state.tokens += len(b.rows)
        if not math.isfinite(total):
            raise ValueError(f"the loss is {total} at step {self.state.step}: try a lower learning rate")
        torch.nn.utils.clip_grad_norm_([w for w in self.draft.parameters() if w.requires_grad], o.clip)
        self.optimizer.step()
        self.state.step += 1
        self.state.seconds += time.perf_counter() - begin
        return total

    def evaluate(self, steps: int, items: list[int] | None = None) -> dict:
        held = self.held if items is None else items
        return evaluate.on_teacher(self.draft, self.data, held, steps, self.options.batch_tokens)

    def state_dict(self) -> dict:
        return {
            "options": asdict(self.options), "config": self.draft.config.to_dict(), "state": asdict(self.state),
            "draft": self.draft.state_dict(), "optimizer": self.optimizer.state_dict(), "d2t": self.draft.d2t.cpu(),
            "items": len(self.items),
        }  # fmt: skip

    def load_state_dict(self, saved: dict) -> None:
        """Resumes a saved run. Raises ValueError if it had other options, another shape or other data."""
        here = self.state_dict()
        for name in ("options", "config", "items"):
            if saved[name] != here[name]:
                changed = name
                if isinstance(here[name], dict):
                    both = {**saved[name], **here[name]}
                    changed = ", ".join(k for k in both if saved[name].get(k) != here[name].get(k))
                raise ValueError(
                    f"--out: the run there was begun with another {changed}; give the same, or another folder"
                )
        self.draft.load_state_dict(saved["draft"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.state = State(**saved["state"])
        self._epoch = (-1, [])


def save_state(path: Path, trainer: Trainer) -> None:
    making = path.with_suffix(".making")
    torch.save(trainer.state_dict(), making)
    making.replace(path)
