"""Passes of models as the runtime makes them, without memory: floats on the meta device, integers real.

Batches come from BatchBuffers and DraftRunner, so page tables are as wide as in the product. The operators are the
Triton forms, which make the launches of a pass wherever floats lie.
"""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import NamedTuple
from unittest.mock import patch

import torch

from ssd import kernels
from ssd.drafts import default_draft
from ssd.kernels import cuda
from ssd.model.config import LlamaConfig, Rope
from ssd.model.draft import Draft
from ssd.model.hub import DEFAULT_TARGET
from ssd.model.weights import BLOCK, LayerWeights, Weights
from ssd.runtime.drafting.draft_runner import DraftRows, DraftRunner
from ssd.runtime.drafting.draft_sampling import parameters
from ssd.runtime.engine.batch_buffers import BatchBuffers
from ssd.runtime.engine.scheduler import Plan
from ssd.runtime.engine.tree import Tree
from ssd.runtime.engine.warm_up import asker, work
from ssd.runtime.lanes.fan_out import RANKS
from ssd.runtime.options import EngineOptions, SpeculationOptions

from ..kernel_report.triton import floats, longs, meta
from ..shapes import MODELS, PAGE, Model, rank_of

LANES = SpeculationOptions(mode="ssd")
ENGINE = EngineOptions()
CONTEXT = 500  # the short one; the other is a model's longest
PROMPTS = (250, 512)  # rows of a chunk
BATCHES = (1, 8)
LEVELS = 4  # of a forest, of which the deepest is computed
SIZES = {
    "ar": [(1, 1)],
    "verify": [(8, batch) for batch in BATCHES],
    "draft": [(LANES.outcomes, batch) for batch in BATCHES],
    "prompt": [(rows, 1) for rows in PROMPTS],
}  # kind of a pass: (rows of a sequence, sequences)


@dataclass
class Pass:
    """One pass of a model. sequences: of `rows` rows each behind `prefix` tokens; run: makes its launches."""

    model: str
    format: str  # of the weights
    kind: str  # "ar", "verify", "draft" or "prompt"
    rows: int
    sequences: int
    context: int
    run: Callable[[], None]


@contextlib.contextmanager
def forms():
    """A context in which the operators of ssd.kernels are the Triton forms, on any device."""
    found = {form.__name__: form for form in cuda.FORMS}
    verify = found["verify_coupled"]
    found["verify_coupled"] = lambda *args: kernels.Verified(*verify(*args))
    with patch.multiple(kernels, **found):
        yield


def llama(
    m: Model, format: str, positions: int, *, qk_norm=False, biases=False, features: tuple[int, ...] = (), outputs=None
) -> Draft:
    """A model on the meta device; with features (layers of the target) a feature draft of that many outputs."""
    config = LlamaConfig(
        m.vocab, m.hidden, m.inner, m.depth, m.heads, m.kv_heads, m.head_dim, positions, 1e-5, Rope(), False, biases,
        biases, None, (), biases, qk_norm,
    )  # fmt: skip
    activations = {"fp32": torch.float32, "fp16": torch.float16}.get(format, torch.bfloat16)
    inner, (n, _) = -(-m.inner // BLOCK) * BLOCK, m.layers["qkv"]

    def packed(n, k):
        return kernels.pack_linear(floats(n, k), format)

    def bias(n):
        return floats(n) if biases else None

    def norm(n=m.hidden):
        return meta(n, dtype=activations)

    def layer(inputs):
        norms = (norm(m.head_dim), norm(m.head_dim)) if qk_norm else (None, None)
        return LayerWeights(
            norm(), packed(n, inputs), bias(n), packed(*m.layers["o"]), bias(m.hidden), norm(),
            packed(2 * inner, m.hidden), bias(2 * inner), packed(m.hidden, inner), bias(m.hidden), *norms,
        )  # fmt: skip

    inputs = [m.hidden * (1 + bool(features and i == 0)) for i in range(m.depth)]
    head = packed(outputs or m.vocab, m.hidden)
    weights = Weights(meta(m.vocab, m.hidden, dtype=activations), [layer(k) for k in inputs], norm(), head)
    made = Draft(config, weights, *(floats(positions, m.head_dim // 2) for _ in range(2)), format)
    made.vocab, made.ids = outputs or m.vocab, longs(outputs) if outputs else None
    made.feature_layers, made.feature_width, made.shift = features, len(features) * m.hidden, 0
    if features:
        made.hidden_norm, made.fc = norm(), packed(m.hidden, made.feature_width)
    return made


def shipped_draft() -> tuple[Model, dict]:
    """Shape and config.json of the feature draft of the default target."""
    c = json.loads((default_draft(DEFAULT_TARGET) / "config.json").read_text())
    shape = (c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"])
    return Model("draft of SmolLM2-135M", *shape, c["intermediate_size"], c["num_hidden_layers"], c["vocab_size"]), c


class Net(NamedTuple):
    """A model among those that are looked at. kinds: of its passes; layers: those whose features its draft reads."""

    shape: Model
    format: str
    positions: int
    kinds: tuple[str, ...] = tuple(SIZES)
    layers: tuple[int, ...] = ()
    options: dict = {}

    @property
    def drafts(self) -> bool:
        """Whether it is never a target."""
        return "ar" not in self.kinds

    def make(self, most: int = 1000) -> Draft:
        """The model, with so many layers at most; all but the first launch the same."""
        shape = replace(self.shape, depth=min(most, self.shape.depth))
        return llama(shape, self.format, self.positions, **self.options)


def nets(name: str = "") -> list[Net]:
    """The default target and its draft, in both formats that it may have, and the named shapes: those whose name
    contains `name`. Raises ValueError where there is none."""
    (draft, c), qwen = shipped_draft(), rank_of("Qwen3-0.6B", "qwen3-0.6b")
    longest, layers = c["max_position_embeddings"], tuple(c["feature_layers"])
    made = [Net(MODELS["SmolLM2-135M"], "bf16", longest, ("ar", "verify", "prompt"), layers)]
    options = {"features": layers, "outputs": c["draft_vocab_size"]}
    made += [Net(draft, format, longest, ("draft", "prompt"), options=options) for format in ("bf16", "int8")]
    made += [Net(MODELS[name], "bf16", 131072) for name in ("Llama-1B", "Llama-8B", "Llama-70B/4")]
    made.append(Net(qwen, "bf16", 40960, options={"qk_norm": True}))
    if not (found := [net for net in made if name in net.shape.name]):
        raise ValueError(f"model: got {name!r}, wanted a part of {', '.join(net.shape.name for net in made)}")
    return found


class Target:
    """The engine's side of a model. layers: those whose features a draft reads."""

    def __init__(self, model: Draft, kind: str, layers: tuple[int, ...] = (), max_batch: int = ENGINE.max_batch):
        self.nodes = LANES.nodes if kind == "verify" else 0
        pages = -(-len(model.cos) // PAGE) + -(-self.nodes // PAGE)
        rows = max_batch * (1 + self.nodes) + ENGINE.prefill_chunk
        self.model, self.layers, self.kv = model, layers, model.new_kv_cache(pages, PAGE)
        self.buffers = BatchBuffers(max_batch, rows, pages, PAGE, self.nodes)

    def inputs(self, rows: int, sequences: int, prefix: int) -> tuple:
        """What BatchBuffers gives for sequences of `rows` rows each: a root and a chain of nodes, or a prompt's end."""
        nodes = rows - 1 if self.nodes else 0
        plan = Plan(work(rows - nodes, nodes, PAGE, prefix) for _ in range(sequences))
        return self.buffers.fill(plan, [Tree([0] * nodes)] * sequences if nodes else None)

    def run(self, batch, sampling, verification) -> None:
        logits, _ = self.model.forward_features(batch, self.kv, self.layers)
        if self.nodes:
            kernels.verify_coupled(logits, *verification, *sampling)
        else:
            kernels.sample(logits, *sampling)


class Drafting:
    """The draft lane's side of a model."""

    def __init__(self, model: Draft, kind: str, max_batch: int = ENGINE.max_batch):
        self.prompt = kind == "prompt"
        rows = LANES.branch_nodes + LANES.outcomes * (1 + LANES.branch_nodes)
        self.runner = DraftRunner(model, max_batch=max_batch, max_len=len(model.cos), nodes=rows)
        self.runner.rounds_masks = True  # as on a GPU

    def inputs(self, rows: int, sequences: int, prefix: int) -> tuple:
        """Rows of each sequence, and arguments of top_f: the deepest nodes of a forest, or the end of a prompt."""
        flight = LANES.branch_nodes
        own = [sum(1 << flight + level * rows + i for level in range(LEVELS)) for i in range(rows)]
        bits = None if self.prompt else [(1 << 1 + i % flight) - 1 | own[i] for i in range(rows)]
        at = range(rows) if self.prompt else [flight + (LEVELS - 1) * rows + i for i in range(rows)]
        depth = at if self.prompt else [b.bit_count() - 1 for b in bits]
        places = [prefix + i for i in at], [prefix + d for d in depth]
        outputs = [rows - 1] if self.prompt else range(rows)
        made = [DraftRows(slot, prefix, [0] * rows, *places, bits, outputs) for slot in range(sequences)]
        sampled = sequences * len(outputs)
        return made, parameters([asker(1)] * sampled, [prefix] * sampled)

    def run(self, rows: list[DraftRows], arguments: tuple) -> None:
        draft, count, hidden = self.runner.draft, sum(len(r.tokens) for r in rows), None
        if draft.feature_layers:
            features = floats(count, draft.feature_width if self.prompt else draft.config.hidden_size)
            hidden = draft.fuse(features) if self.prompt else features
        logits, _ = self.runner.forward(rows, hidden)
        kernels.top_f(logits, *arguments, RANKS + 1, target_ids=draft.ids)


def side_of(net: Net, model: Draft, kind: str, max_batch: int = ENGINE.max_batch):
    """What makes the inputs of passes of a kind, and runs them."""
    if kind == "draft" or net.drafts:
        return Drafting(model, kind, max_batch)
    return Target(model, kind, net.layers if model.config.num_layers == net.shape.depth else (), max_batch)


def passes(name: str = "", kinds: Iterable[str] = tuple(SIZES)) -> Iterator[Pass]:
    """The passes of models whose name contains `name`, behind the short context and behind the longest."""
    for net in nets(name):
        model = net.make()
        for kind in [kind for kind in net.kinds if kind in kinds]:
            for (rows, sequences), long in product(SIZES[kind], (False, True)):
                behind = LEVELS * rows + LANES.branch_nodes if kind == "draft" else rows
                context = net.positions if long else CONTEXT
                side = side_of(net, model, kind)
                inputs = side.inputs(rows, sequences, context - behind if long else context)
                run = partial(side.run, *inputs)
                yield Pass(net.shape.name, net.format, kind, rows, sequences, context, run)
