"""Recording of teacher data: the target's answers, with its most probable tokens at every step."""

import logging
import time
from pathlib import Path

import numpy as np
import torch

from ssd import kernels
from ssd.cli.jsonl import read_lines
from ssd.model import hub

from .data import TOP, Sequences, chat, encode_nlp, expand, save, text_of
from .features import write as write_features
from .teacher import Target

log = logging.getLogger(__name__)
TURN_TOKENS = 128  # longest turn of a user that the target writes
TURN_TEMPERATURE = 0.8  # temperature at which it writes one


class TopSampler:
    """A `kernels.sample` that also keeps the TOP most probable tokens of every row."""

    def __init__(self):
        self.rows: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}  # seed to (ids, nlp) of its rows

    def __call__(self, logits, temperature, top_k, top_p, min_p, seeds, positions, logprobs=True):
        values, ids = logits.topk(TOP, -1)
        nlp = encode_nlp(logits.logsumexp(-1, keepdim=True) - values)
        for seed, *row in zip(seeds.tolist(), ids.numpy(), nlp.numpy(), strict=True):
            self.rows.setdefault(seed, []).append(row)
        return kernels.sample(logits, temperature, top_k, top_p, min_p, seeds, positions, logprobs)


def read_prompts(files: list[Path], tokenizer) -> list[tuple[str, list[int], bool]]:
    """(kind, token ids, whether it is a start) of each line. A line {"prompt"} is answered as it is; a line {"start"}
    has the first words of a user's turn, which the target completes before it answers."""
    found = []
    for path in files:
        if path.suffix != ".jsonl":
            raise ValueError(f"{path}: is not a .jsonl file of prompts")
        for where, line in read_lines(path):
            kind = str(line.get("task", path.stem))
            key = "prompt" if "prompt" in line else "start"
            if key not in line:
                raise ValueError(f"{where}: has no `prompt`, nor the `start` of one")
            encode = chat if key == "prompt" else start_of_turn
            found.append((kind, encode(tokenizer, text_of(line, key, where)), key == "start"))
    if not found:
        raise ValueError(f"no prompt in {', '.join(map(str, files))}")
    return found


def start_of_turn(tokenizer, text: str) -> list[int]:
    """Token ids of the chat template up to the end of these words, the first of a user's turn."""
    whole = tokenizer.chat([{"role": "user", "content": text}])
    return tokenizer.encode(whole[: whole.rindex(text) + len(text)], add_special_tokens=False)


class TorchAnswers:
    """Answers by the target in torch, which is much faster than the engine when there are many sequences."""

    seeded = False  # whether a draft can reproduce the noise of the answers from their seeds

    def __init__(self, folder: Path, args):
        from ssd.model.tokenizer import Tokenizer

        self.target = Target(folder, device=args.device, features=args.feature_layers)
        self.tokenizer = Tokenizer(folder)
        self.eos = self.target.config.eos_token_ids
        self.cache = Path(args.cache)
        self.batch = args.record_batch

    def __call__(self, prompts, temperatures, seed, max_tokens) -> tuple[list, list | None]:
        """([(tokens, top ids, nlp)], features or None), in the order of the prompts."""
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        got = [None] * len(prompts)
        features = [None] * len(prompts)
        for at in range(0, len(order), self.batch):
            group = order[at : at + self.batch]
            generator = torch.Generator(self.target.device).manual_seed(seed + at)
            a = self.target.generate(
                [prompts[i] for i in group], [temperatures[i] for i in group], max_tokens, generator
            )
            for k, i in enumerate(group):
                got[i] = (a.tokens[k], np.stack(a.top_ids[k]), np.stack(a.top_nlp[k]))
                features[i] = a.features and a.features[k]
        return got, features if self.target.features else None


class EngineAnswers:
    """Answers by this project's engine; the seed of a sequence is `seed` plus its number."""

    seeded = True

    def __init__(self, folder: Path, args, cores):
        from ssd.model.llama import Llama
        from ssd.model.tokenizer import Tokenizer
        from ssd.runtime import LLM
        from ssd.runtime.devices.threads import bind, cores_of

        bind(cores_of(cores))
        self.sampler = TopSampler()
        self.tokenizer = Tokenizer(folder)
        model = Llama.load(folder, args.dtype)
        length = min(model.config.max_positions, 1024 + args.max_tokens)
        self.llm = LLM.from_model(
            model, self.tokenizer, self.sampler, max_batch=args.record_batch, max_model_len=length,
            kv_tokens=args.record_batch * length, threads=cores,
        )  # fmt: skip
        self.eos = model.config.eos_token_ids

    def __call__(self, prompts, temperatures, seed, max_tokens) -> tuple[list, None]:
        from ssd.runtime import SamplingParams

        params = [SamplingParams(t, seed=seed + i, max_tokens=max_tokens) for i, t in enumerate(temperatures)]
        got = []
        for i, o in enumerate(self.llm.generate(prompts, params)):
            rows = self.sampler.rows.pop(seed + i)
            got.append((o.token_ids, *(np.stack(x) for x in zip(*rows, strict=True))))
        return got, None


def record(answer, prompts: list, starts: list, temperatures: list[float], seed: int, max_tokens: int):
    """(Sequences, features or None) of the answers to `prompts` and to the turns that the target makes of `starts`,
    both lists of (kind, ids).

    Turns are drawn at TURN_TEMPERATURE; only those that the target ends within TURN_TOKENS count.
    """
    if starts:
        turns, _ = answer([ids for _, ids in starts], [TURN_TEMPERATURE] * len(starts), seed + (1 << 32), TURN_TOKENS)
        tail = answer.tokenizer.encode_chat([{"role": "user", "content": "x"}])
        tail = tail[len(start_of_turn(answer.tokenizer, "x")) :]  # what the template has after the user's words
        for (kind, start), (tokens, *_) in zip(starts, turns, strict=True):
            if tokens[-1] in answer.eos and len(tokens) > 1:
                prompts = [*prompts, (kind, [*start, *tokens[:-1], *tail])]
    heat = [temperatures[i % len(temperatures)] for i in range(len(prompts))]
    ids = [p for _, p in prompts]
    got, features = answer(ids, heat, seed, max_tokens)
    s = Sequences([k for k, _ in prompts], ids, *([g[i] for g in got] for i in range(3)), heat)
    s.seeds = list(range(seed, seed + len(ids))) if answer.seeded else [-1] * len(ids)
    return s, features


def run(args, cores) -> int:
    """Writes files part_N.npz, each with the answers to args.part prompts. Existing parts are kept, so the same call
    resumes an interrupted run."""
    folder = hub.resolve(args.target)
    out = Path(args.record)
    answer = TorchAnswers(folder, args) if args.engine == "torch" else EngineAnswers(folder, args, cores)
    out.mkdir(parents=True, exist_ok=True)
    lines = read_prompts(expand(args.data), answer.tokenizer)
    begin = time.perf_counter()
    done = 0
    parts = [lines[i : i + args.part] for i in range(0, len(lines), args.part)]
    for number, part in enumerate(parts):
        path = out / f"part_{number}.npz"
        if path.is_file():
            continue
        prompts, starts = ([(kind, ids) for kind, ids, is_start in part if is_start == x] for x in (False, True))
        s, features = record(
            answer, prompts, starts, args.temperatures, args.seed + number * args.part, args.max_tokens
        )
        if features:
            write_features(answer.cache, s, answer.target, features)
        making = path.with_suffix(".making")
        save(making, s)
        making.rename(path)
        done += sum(map(len, s.completions))
        speed = done / (time.perf_counter() - begin)
        log.info("part %d of %d: %d answers, %.0f tokens/s", number + 1, len(parts), len(s), speed)
        if args.minutes and time.perf_counter() - begin > 60 * args.minutes:
            break
    return 0
