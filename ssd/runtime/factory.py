"""Puts the parts of a mode together."""

from ssd.model.draft import Draft
from ssd.model.hub import cache_folder

from .cache_files import cache_file, pair_key
from .devices.placement import device_of, placement_of
from .devices.threads import CORES, cores_of
from .drafting.draft_runner import DraftRunner
from .drafting.draft_sampling import CoupledSampler, RejectionSampler
from .drafting.ngram import NgramProposer
from .lanes.branch_budget import BranchBudget
from .lanes.draft_lane import DraftLane
from .lanes.fan_out import FanOut
from .lanes.speculation_cache import SpeculationCache
from .lanes.verify_lane import VerifyLane
from .options import EngineOptions, SpeculationOptions
from .switching.auto import AutoMode
from .switching.backup_draft import BackupDraft
from .switching.measure import costs_of
from .sync.model_proposer import ModelProposer
from .sync.speculator import SyncSpeculator

DRAFT_DTYPE = "int8"  # the fastest at few rows; no token depends on it


def load_drafts(options: SpeculationOptions, target: str | None, model) -> tuple:
    """The draft of load_draft, and the backup draft or None. Raises ValueError where there is none."""
    from ssd.drafts import default_draft
    from ssd.model import hub

    draft, backup, name = load_draft(options, target, model), None, options.backup_draft
    if name:
        folder = default_draft(target or hub.DEFAULT_TARGET, name) if name == "large" else hub.resolve(name)
        if folder is None:
            raise ValueError(f"backup_draft: no large one comes with {target}, wanted a folder or the id of a model")
        backup = Draft.load(folder, model, options.draft_dtype or DRAFT_DTYPE, options.draft_device)
    return draft, backup


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
        raise ValueError(f"draft: none comes with {target}, wanted a folder, the id of a model, or ngram")
    return Draft.load(folder, model, options.draft_dtype or DRAFT_DTYPE, options.draft_device)


def verify_cores(speculation: SpeculationOptions, options: EngineOptions) -> list[int] | None:
    """Cores of the thread that runs the target, None for the kernels' default. With a draft lane on the CPU too and
    nothing said, the last core of the process is the draft's and the others are the target's."""
    beside = device_of(speculation.draft_device or options.device).type == "cpu"
    if speculation.mode == "ssd" and options.threads is None and len(CORES) > 1 and beside:
        return list(CORES[:-1])
    return cores_of(options.threads)


def draft_cores(speculation: SpeculationOptions, model) -> list[int]:
    """Of a draft lane on the CPU: the last core, or all but the first where the target is on a GPU."""
    if speculation.draft_threads is not None:
        return cores_of(speculation.draft_threads)
    return [CORES[-1]] if model.device.type == "cpu" else list(CORES[1:] or CORES)


def make_speculator(speculation: SpeculationOptions, options: EngineOptions, drafts, model, max_len: int):
    """What an engine needs for a mode; None for plain decoding. drafts: the draft and the backup draft or None."""
    if speculation.mode == "ar":
        return None
    draft, backup = drafts
    if draft == "ngram" and speculation.mode == "ssd":
        raise ValueError("draft: got ngram, wanted a draft model for mode 'ssd'")
    if speculation.mode == "ssd":
        return make_lanes(speculation, options, draft, backup, model, max_len)
    sd = make_sd(speculation, options, draft, model, max_len)
    if speculation.mode == "sd" or draft == "ngram" or speculation.verify == "rejection":
        return sd
    drafting = draft_cores(speculation, model)
    if model.device.type != "cpu" or draft.device.type != "cpu":
        together = apart = cores_of(options.threads)
    elif len(CORES) < 2 or options.threads not in (None, len(CORES)):
        return sd
    else:
        together, apart = cores_of(options.threads) or [-1] * len(CORES), list(CORES[:-1])
    costs = costs_of(model, draft, together, apart, drafting, cache_folder())
    lanes = make_lanes(speculation, options, draft, backup, model, max_len)
    cores = {"sd": together, "ssd": apart}
    return AutoMode(sd, lanes, costs, cores, depth=speculation.depth, branches=speculation.outcomes)


def make_sampler(speculation: SpeculationOptions) -> CoupledSampler | RejectionSampler:
    return RejectionSampler(speculation.saguaro) if speculation.verify == "rejection" else CoupledSampler()


def make_sd(speculation: SpeculationOptions, options: EngineOptions, draft, model, max_len: int) -> SyncSpeculator:
    policy = speculation.policy(3 if model.device.type == "cpu" else 1)  # tensor cores: chains are exact to the bit
    rejection = speculation.verify == "rejection"
    if draft == "ngram":
        proposer = NgramProposer()
    else:
        proposer = ModelProposer(
            draft, make_sampler(speculation), max_batch=options.max_batch, max_len=max_len, nodes=policy.nodes,
            placement=placement_of(draft),
        )  # fmt: skip
    return SyncSpeculator(proposer, policy, rejection)


def make_lanes(
    speculation, options, draft: Draft, backup: Draft | None, model, max_len: int
) -> VerifyLane | BackupDraft:
    first = lanes_of(speculation, options, draft, model, max_len)
    return BackupDraft(first, lanes_of(speculation, options, backup, model, max_len)) if backup else first


def lanes_of(speculation: SpeculationOptions, options: EngineOptions, draft: Draft, model, max_len: int) -> VerifyLane:
    depth, width, budget = speculation.depth, speculation.width, speculation.outcomes
    nodes, slots = speculation.branch_nodes, options.max_batch
    leaves = speculation.leaves if model.device.type == "cpu" else 0  # tensor cores: chains are exact to the bit
    own = cache_file(cache_folder(), "history", pair_key(model, draft))  # or what came with the draft
    fan_out = FanOut.read([] if speculation.lockstep else [own, draft.folder / "history.json"], speculation.fan_out)
    feature_bytes = 4 * draft.feature_width
    placement, rejection = placement_of(draft, draft_cores(speculation, model)), speculation.verify == "rejection"

    def start(requests, wants):
        cache = SpeculationCache(
            slots, budget, nodes, vocab=model.config.vocab_size, log=max_len, feature_bytes=feature_bytes,
            q_width=draft.vocab if rejection else 0,
        )  # fmt: skip
        runner = DraftRunner(
            draft, max_batch=slots, max_len=max_len, nodes=nodes + budget * (1 + nodes), placement=placement
        )
        branch_budget = BranchBudget(budget, depth, adapts=not speculation.k)
        return cache, DraftLane(
            runner,
            make_sampler(speculation),
            cache,
            requests,
            wants,
            fan_out,
            branch_budget,
            width=width,
            leaves=leaves,
        )

    return VerifyLane(
        start, slots=slots, layers=draft.feature_layers, depth=depth,
        vocab=model.config.vocab_size, fallback=NgramProposer(), lockstep=speculation.lockstep,
        rejection=rejection, ids=None if draft.ids is None else draft.ids.cpu(),
        history=None if speculation.lockstep else (fan_out, own),
    )  # fmt: skip
