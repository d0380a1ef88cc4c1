"""One call of python -m ssd.distill: it trains a draft, or measures the acceptance of an existing one."""

import json
import logging
import time
from pathlib import Path

import torch
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from ssd.model import hub
from ssd.model.config import LlamaConfig
from ssd.model.rope import rope_tables
from ssd.model.tokenizer import Tokenizer

from . import evaluate
from .batches import Data, all_tops, load_data
from .config import DraftConfig, choose_vocabulary, first_weights, plan
from .data import expand, load
from .export import load_draft, save_draft
from .model import Draft
from .teacher import Target
from .train import Trainer, TrainOptions, save_state

log = logging.getLogger(__name__)


def data_of(args, folder: Path, layers) -> tuple[Data, Target]:
    target = Target(folder, torch.float32 if args.fp32 else torch.bfloat16, args.device, tuple(layers))
    tokenizer = Tokenizer(folder)
    eos = target.config.eos_token_ids
    sets = [load([f], tokenizer, eos[0] if eos else None) for f in expand(args.data)]
    with tqdm(unit="token", unit_scale=True, desc="features", disable=None) as bar:

        def progress(done, total):
            bar.total = total
            bar.update(done - bar.n)

        return load_data(sets, target, Path(args.cache), progress), target


def scale_of(data: Data, items: list[int], width: int) -> torch.Tensor:
    """Root mean square of each feature over a sample of rows, float32 [width]."""
    if not width:
        return torch.ones(0)
    rows = []
    for k in items[:: max(1, len(items) // 256)]:
        number, i, begin, n = data.items[k]
        plen = len(data.sets[number][0].prompts[i])
        rows.append(data.sets[number][1][begin + plen : begin + n : 4].float())
    return torch.cat(rows).square().mean(0).sqrt().clamp_min(1e-3)


def new_draft(args, folder: Path, data: Data, items: list[int], embedding: torch.Tensor) -> Draft:
    """A draft that starts from the target, or from the draft of --from, to which it may add layers and tokens."""
    c = LlamaConfig.from_folder(folder)
    layers = list(args.layers) or ([c.num_layers - 1] if args.feature_layers else first_and_last(c.num_layers))
    config = plan(folder, layers, args.feature_layers, args.hidden_size, args.draft_vocab)
    cos, sin = rope_tables(c, data.max_length)
    dtype = torch.float32 if args.fp32 else torch.bfloat16
    scale = scale_of(data, items, len(args.feature_layers) * c.hidden_size)
    small = None
    if args.begin:
        was = DraftConfig.from_folder(Path(args.begin))
        wanted = config.to_dict()
        more = {k for k in ("num_hidden_layers", "draft_vocab_size") if was.to_dict()[k] < wanted[k]}
        if changed := [k for k, v in wanted.items() if was.to_dict().get(k) != v and k not in more]:
            raise ValueError(f"--from: the draft in {args.begin} has another {', '.join(changed)}")
        small = load_draft(Path(args.begin), embedding, dtype, "cpu", None if more else scale)
        if not more:
            small.cos = cos
            small.sin = sin
            return small.to(args.device)
    d2t = torch.arange(c.vocab_size)
    if config.draft_vocab_size < c.vocab_size:
        always = c.eos_token_ids if small is None else small.d2t.tolist()
        d2t = choose_vocabulary(*all_tops(data, items), config.draft_vocab_size, c.vocab_size, always)
    weights, own = first_weights(config, folder, layers, d2t, args.seed)
    if small is not None:
        grow(config, weights, d2t, small)
    elif config.has_fc:
        shrink(config, weights, scale)
    return Draft(config, weights, d2t, own.to(embedding.dtype), cos, sin, dtype, scale).to(args.device)


def grow(config: DraftConfig, weights: dict[str, torch.Tensor], d2t: torch.Tensor, small: Draft) -> None:
    """Puts the weights of a smaller draft into `weights`. Added layers contribute nothing to the residual stream yet;
    added tokens keep the rows that they have."""
    for name, w in small.weights().items():
        if name == "lm_head.weight":
            weights[name][torch.searchsorted(d2t, small.d2t)] = w.detach()
        else:
            weights[name] = w.detach()
    for i in range(small.config.num_layers, config.num_layers):
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            weights[f"model.layers.{i}.{name}.weight"].zero_()


def shrink(config, weights: dict[str, torch.Tensor], scale: torch.Tensor) -> None:
    """Scales the residual stream down without a change of the draft's output, since a norm precedes every reader.

    The layer's contribution can then outgrow the features that it is fed with. The divisor is the square root of the
    features' size, which trained better than the whole size or no division.
    """
    deepest = max(range(len(config.feature_layers)), key=config.feature_layers.__getitem__)
    size = scale.view(len(config.feature_layers), -1)[deepest].square().mean() ** 0.25
    for name, weight in weights.items():
        if name == "fc.weight" or name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name] = weight / size


def first_and_last(n: int) -> list[int]:
    """The first four and the last two of n layers."""
    return sorted({*range(min(4, n)), *range(max(0, n - 2), n)})


def run_evaluate(args) -> int:
    folder = hub.resolve(args.target)
    layers = DraftConfig.from_folder(Path(args.evaluate)).feature_layers
    data, target = data_of(args, folder, layers)
    draft = load_draft(Path(args.evaluate), target.embedding.cpu(), target.dtype, args.device)
    everything = list(range(len(data.items)))
    results = evaluate.on_text(draft, data, everything, args.depth, args.batch_tokens)
    if not results:
        raise ValueError("--evaluate: every sequence was sampled without a known seed; record some with --engine ssd")
    report = []
    for (kind, temperature), r in results.items():
        report.append({"kind": kind, "temperature": temperature} | r)
        steps, rounds = (" ".join(f"{a:.2f}" for a in r[name]) for name in ("per_position", "walked_length"))
        log.info(f"{kind:12} temperature {temperature}: accepted {steps}; tokens a round {rounds}")
    if args.json:
        Path(args.json).write_text(json.dumps(report, indent=2) + "\n")
    return 0


def run_train(args) -> int:
    """Trains a draft, or resumes its training; args.out has the draft of the last checkpoint."""
    folder = hub.resolve(args.target)
    out = Path(args.out)
    data, target = data_of(args, folder, args.feature_layers)
    embedding = target.embedding.cpu().bfloat16()
    del target
    items, held = data.split(args.held_out)
    if not items or not held:
        got = f"{len(items)} sequences to train on and {len(held)} held out"
        raise ValueError(f"data: got {got}, wanted some of both; give more data or another --held-out")
    held = held[: args.held_max]
    options = TrainOptions(**{name: getattr(args, name) for name in TrainOptions.__dataclass_fields__})
    torch.manual_seed(args.seed)
    trainer = Trainer(new_draft(args, folder, data, items, embedding), data, items, held, options)
    state_file = out / "state.pt"
    out.mkdir(parents=True, exist_ok=True)
    if state_file.is_file():
        trainer.load_state_dict(torch.load(state_file, weights_only=True))
    size = sum(w.numel() for w in trainer.draft.parameters())
    tokens = sum(len(data.sets[n][0].completions[i]) for n, i, *_ in (data.items[k] for k in items))
    log.info(f"{size / 1e6:.1f} M weights, {len(items)} sequences with {tokens} tokens, {len(held)} held out")
    go_on(args, trainer, out, state_file)
    return 0


def go_on(args, trainer: Trainer, out: Path, state_file: Path) -> None:
    begin = time.perf_counter()
    s = trainer.state
    started = s.step
    first = s.tokens
    recent: list[float] = []

    def pause() -> None:
        """Evaluates the draft, saves the run, and logs the result."""
        r = trainer.evaluate(args.depth)
        point = {"step": s.step, "tokens": s.tokens, "seconds": round(s.seconds, 1)}
        point |= {"loss": sum(recent) / max(len(recent), 1), **r}
        s.curve.append(point)
        save_state(state_file, trainer)
        save_draft(out, trainer.draft)
        (out / "curve.json").write_text(json.dumps(s.curve, indent=1) + "\n")
        shown = "; ".join(
            f"{name} {v['expected_length']:.3f} ({' '.join(f'{a:.2f}' for a in v['per_position'])})"
            for name, v in r.items()
        )
        log.info(f"step {s.step}, {s.tokens} tokens, loss {point['loss']:.4f}: accepted length {shown}")

    steps = trainer.options.steps
    with logging_redirect_tqdm(), tqdm(total=steps, initial=s.step, unit="step", disable=None) as bar:
        while s.step < steps:
            recent = [*recent[-49:], trainer.step()]
            spent = time.perf_counter() - begin
            speed = (s.tokens - first) / spent
            bar.set_postfix_str(f"loss {recent[-1]:.4f}, {speed:.0f} tokens/s", refresh=False)
            bar.update()
            if bar.disable and s.step % 20 == 0:  # no terminal
                left = (steps - s.step) * spent / max(1, s.step - started) / 60
                line = "step %d of %d, loss %.4f, %.0f tokens/s, %.0f min left"
                log.info(line, s.step, steps, recent[-1], speed, left)
            enough = args.minutes and spent > 60 * args.minutes
            if s.step == steps or s.step % args.evaluate_every == 0 or enough:
                pause()
                recent = []
            if enough:
                break
    if args.plot:
        from .plot import plot

        plot(s.curve, Path(args.plot))
