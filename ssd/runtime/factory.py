"""Makes the speculator of a mode out of its parts."""

import torch

from ssd.model.cache_folder import cache_folder
from ssd.model.draft import Draft

from .cache_files import cache_file, pair_key
from .devices.free_memory import weights_fit
from .devices.kv_memory import KVPart
from .devices.placement import device_of, placement_of
from .devices.threads import CORES, cores_of
from .drafting.draft_memory import PAGE_SIZE, DraftMemory, pages_of
from .drafting.draft_runner import DraftRunner
from .drafting.draft_sampling import CoupledSampler, RejectionSampler
from .drafting.ngram import NgramProposer
from .engine.speculator import NoSpeculation, Speculator
from .lanes.branch_budget import BranchBudget
from .lanes.draft_lane import DraftLane
from .lanes.fan_out import FanOut
from .lanes.speculation_cache import SpeculationCache
from .lanes.verify_lane import VerifyLane
from .options import LONGEST_SPECULATION, EngineOptions, SpeculationOptions
from .switching.auto import AutoMode
from .switching.backup_draft import BackupDraft
from .switching.measure import costs_of
from .sync.model_proposer import ModelProposer
from .sync.policy import Policy
from .sync.speculator import SyncSpeculator

WIDTH = 3  # children of a node where shapes adapt; on tensor cores only chains are exact to the bit, so 1


def draft_dtype(options: SpeculationOptions, model) -> str:
    """The format of the draft's weights, by default the one that its device reads fastest; no token depends on it.

    The CPU is bound by bandwidth, so int8. A product of few rows on a GPU is bound by the bytes that its programs keep
    in flight, of which int8 has so many fewer that it is no faster than bf16.
    """
    device = torch.device(options.draft_device or model.device)
    return options.draft_dtype or ("int8" if device.type == "cpu" else "bf16")


def load_drafts(options: SpeculationOptions, target: str | None, model) -> tuple:
    """The draft of load_draft, and the backup draft or None. Raises ValueError where one is missing."""
    from ssd.drafts import default_draft
    from ssd.model import hub

    draft, backup, name = load_draft(options, target, model), None, options.backup_draft
    if name:
        folder = default_draft(target or hub.DEFAULT_TARGET, name) if name == "large" else hub.resolve(name)
        if folder is None:
            raise ValueError(f"backup_draft: no large draft comes with {target}; name a folder or the id of a model")
        backup = load(folder, "backup draft", options, model)
    return draft, backup


def load(folder, name: str, options: SpeculationOptions, model) -> Draft:
    device = torch.device(options.draft_device or model.device)
    with weights_fit(name, device):
        return Draft.load(folder, model, draft_dtype(options, model), device)


def load_draft(options: SpeculationOptions, target: str | None, model) -> Draft | str:
    """The Draft that options name, or "ngram". Raises ValueError where there is none."""
    from ssd.drafts import default_draft
    from ssd.model import hub

    if options.draft == "ngram":
        return "ngram"
    folder = hub.resolve(options.draft) if options.draft else default_draft(target or hub.DEFAULT_TARGET)
    if folder is None and options.mode == "auto":
        return "ngram"
    if folder is None:
        other = "" if options.mode == "ssd" else ", or ngram"
        raise ValueError(f"draft: none comes with {target}; name a folder or the id of a model{other}")
    return load(folder, "draft", options, model)


def verify_cores(speculation: SpeculationOptions, options: EngineOptions) -> list[int] | None:
    """The cores of the thread that runs the target, None for the kernels' default.

    With a draft lane on the CPU and no options about threads, the draft gets the last core of the process and the
    target the others.
    """
    beside = device_of(speculation.draft_device or options.device).type == "cpu"
    if speculation.mode == "ssd" and options.threads is None and len(CORES) > 1 and beside:
        return list(CORES[:-1])
    return cores_of(options.threads)


def draft_cores(speculation: SpeculationOptions, model) -> list[int]:
    """The cores of a draft lane on the CPU: the last one, or all but the first where the target is on a GPU."""
    if speculation.draft_threads is not None:
        return cores_of(speculation.draft_threads)
    return [CORES[-1]] if model.device.type == "cpu" else list(CORES[1:] or CORES)


def kv_parts(speculation: SpeculationOptions, options: EngineOptions, drafts, model, max_len: int) -> list[KVPart]:
    """What holds KV: the target and its drafts. drafts as for make_speculator; max_len: tokens of a request at most."""
    models = {"target": model}
    if speculation.mode != "ar" and drafts[0] != "ngram":
        models |= {name: draft for name, draft in zip(("draft", "backup draft"), drafts, strict=True) if draft}
    return [kv_part(speculation, options, name, each, max_len) for name, each in models.items()]


def kv_part(speculation: SpeculationOptions, options: EngineOptions, name: str, model, max_len: int) -> KVPart:
    """The KV of a model. A draft keeps nodes beside the tokens for which the target has pages, its spare ones
    included, and no more than all slots can hold."""
    spare, most = options.max_batch * pages_of(speculation.nodes), None
    if name != "target":
        spare += options.max_batch * pages_of(speculation.draft_nodes)
        most = options.max_batch * pages_of(min(max_len, len(model.cos)) + speculation.draft_nodes)
    device = getattr(model, "device", torch.device("cpu"))
    weights = sum(t.nbytes for t in {id(t): t for t in model.tensors()}.values())
    return KVPart(name, device, model.page_bytes(PAGE_SIZE), PAGE_SIZE, spare, most, weights)


def make_speculator(
    speculation: SpeculationOptions, options: EngineOptions, drafts, model, max_len: int, kv_tokens: int
) -> Speculator:
    """The speculator of a mode. drafts: the draft and the backup draft or None; not read in mode ar. kv_tokens: of the
    KV that requests share."""
    if speculation.mode == "ar":
        return NoSpeculation()
    draft, backup = drafts
    if draft == "ngram" and speculation.mode == "ssd":
        raise ValueError("draft: got ngram, wanted a draft model for mode 'ssd'")
    memories = [make_memory(speculation, options, each, model, max_len, kv_tokens) for each in drafts]
    if speculation.mode == "ssd":
        return make_lanes(speculation, options, memories, model, max_len)
    sync = make_sync(speculation, options, memories[0], model, max_len)
    if speculation.mode == "sd" or draft == "ngram" or speculation.verify == "rejection":
        return sync
    if model.device.type != "cpu" or draft.device.type != "cpu":
        together = apart = cores_of(options.threads)
    elif len(CORES) < 2 or options.threads not in (None, len(CORES)):
        return sync
    else:
        together, apart = cores_of(options.threads) or [-1] * len(CORES), list(CORES[:-1])
    costs = costs_of(model, draft, together, apart, draft_cores(speculation, model), cache_folder())
    lanes = make_lanes(speculation, options, memories, model, max_len)
    cores = {"sd": together, "ssd": apart}
    return AutoMode(sync, lanes, costs, cores, depth=speculation.depth, branches=speculation.outcomes)


def make_sampler(speculation: SpeculationOptions) -> CoupledSampler | RejectionSampler:
    return RejectionSampler(speculation.saguaro) if speculation.verify == "rejection" else CoupledSampler()


def make_policy(speculation: SpeculationOptions, width: int) -> Policy:
    """The policy of synchronous speculation. width: children of a node at most, where the options name no other."""
    k = speculation.k
    if k:
        return Policy(k, speculation.width, k * speculation.width, adaptive=False)
    return Policy(depth=LONGEST_SPECULATION, width=speculation.tree_width or width, nodes=LONGEST_SPECULATION)


def make_memory(
    speculation: SpeculationOptions, options: EngineOptions, draft, model, max_len: int, kv_tokens: int
) -> DraftMemory | None:
    """The memory of a draft, None where no model drafts. All that read and write it share a stream."""
    if not isinstance(draft, Draft):
        return None
    pages = kv_part(speculation, options, "draft", draft, max_len).pages(kv_tokens)
    placement = placement_of(draft, draft_cores(speculation, model))
    return DraftMemory(draft, pages, placement, options.prefix_caching)


def make_sync(
    speculation: SpeculationOptions, options: EngineOptions, memory: DraftMemory | None, model, max_len: int
) -> SyncSpeculator:
    """memory: of the draft, None for n-grams."""
    policy = make_policy(speculation, WIDTH if model.device.type == "cpu" else 1)
    if memory is None:
        return SyncSpeculator(NgramProposer(), policy)
    placement = memory.placement if memory.placement.remote else placement_of(memory.draft)  # cores: the caller's
    proposer = ModelProposer(
        memory.draft, make_sampler(speculation), max_batch=options.max_batch, max_len=max_len, nodes=policy.nodes,
        placement=placement, memory=memory,
    )  # fmt: skip
    return SyncSpeculator(proposer, policy)


def make_lanes(
    speculation: SpeculationOptions, options: EngineOptions, memories: list[DraftMemory | None], model, max_len: int
) -> VerifyLane | BackupDraft:
    """memories: of the draft and of the backup draft, None where there is none."""
    lanes = [make_lane(speculation, options, memory, model, max_len) for memory in memories if memory]
    return BackupDraft(*lanes) if len(lanes) > 1 else lanes[0]


def make_lane(
    speculation: SpeculationOptions, options: EngineOptions, memory: DraftMemory, model, max_len: int
) -> VerifyLane:
    draft, placement = memory.draft, memory.placement
    depth, width, branches = speculation.depth, speculation.width, speculation.outcomes
    nodes, slots, vocab = speculation.branch_nodes, options.max_batch, model.config.vocab_size
    leaves = speculation.leaves if model.device.type == "cpu" else 0  # tensor cores: chains are exact to the bit
    own = cache_file(cache_folder(), "history", pair_key(model, draft))  # or what came with the draft
    fan_out = FanOut.read([] if speculation.lockstep else [own, draft.folder / "history.json"], speculation.fan_out)
    q_width = draft.vocab if speculation.verify == "rejection" else 0

    def start(owners):
        """A speculation cache and a draft lane on the draft's memory; called again after a lane failed."""
        cache = SpeculationCache(
            slots, branches, nodes, vocab=vocab, log=max_len, feature_bytes=4 * draft.feature_width, q_width=q_width
        )
        sizes = {"max_batch": slots, "max_len": max_len, "nodes": speculation.forest_nodes}
        runner = DraftRunner(draft, **sizes, placement=placement, memory=memory)
        budget = BranchBudget(branches, depth, adapts=not speculation.k)
        return cache, DraftLane(
            runner, make_sampler(speculation), cache, owners, fan_out, budget, width=width, leaves=leaves
        )

    return VerifyLane(
        start, slots=slots, layers=draft.feature_layers, depth=depth, vocab=vocab, fallback=NgramProposer(),
        lockstep=speculation.lockstep, ids=None if draft.ids is None else draft.ids.cpu(),
        history=None if speculation.lockstep else (fan_out, own),
    )  # fmt: skip
