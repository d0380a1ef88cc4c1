"""Options of an engine and of its speculation."""

from dataclasses import dataclass, fields

from ssd.shared_options import check_prompt_attention, check_used

from .devices.kv_memory import KVPart, size_kv
from .devices.placement import device_of
from .devices.threads import cores_of
from .sampling.sampling_params import check_integer, check_number

DEFAULT_KV_TOKENS = 32768
MODES = ("ar", "sd", "ssd", "auto")
VERIFY = ("coupled", "rejection")
BRANCHES = 24
LEAVES = 2
# tokens of a speculation that adapts: with the root within one tile of the AVX-512 linear kernels
LONGEST_SPECULATION = 7
MAX_NODES = 63  # tokens of a speculation; with the root one mask word
MAX_ROWS = 512  # nodes of a draft's forest


@dataclass(frozen=True)
class SpeculationOptions:
    """How tokens are made. Raises ValueError or TypeError naming the field."""

    # "ar" (plain decoding), "sd" (a draft proposes, then the target verifies), "ssd" (the draft prepares what comes
    # next while the target verifies) or "auto" (whichever is predicted to be fastest, round by round)
    mode: str = "ar"
    # a folder, the id of a model, or "ngram" (what followed the same words earlier in the text); None: the draft that
    # comes with the target
    draft: str | None = None
    k: int | None = None  # tokens of a branch; None: length and shape adapt to what pays, round by round
    # branches below the root (1); where length and shape adapt, children of a node at most (3, on a GPU 1)
    tree_width: int | None = None
    draft_dtype: str | None = None  # of the draft's weights; None: int8, on a GPU bf16. No token depends on it
    # "coupled" (tokens of plain decoding) or "rejection" (the published rule: others of the same distribution)
    verify: str = "coupled"
    saguaro: float = 1.0  # scale of the draft's likeliest probabilities in [0, 1], for rejection; 1 leaves them alone
    branches: int | None = None  # outcomes that ssd prepares for in a round (24), shared out by what was hit before
    fan_out: int | None = None  # bonus tokens below every node, in place of branches
    draft_device: str | None = None  # device of the draft; None: that of the target
    draft_threads: int | list[int] | None = None  # threads of ssd's draft, as EngineOptions.threads
    # a larger draft that ssd changes to where the draft brings little; "large": the one that comes with the target
    backup_draft: str | None = None
    lockstep: bool = False  # both lanes of ssd take turns in one thread, so that the draft always finishes: for studies

    def __post_init__(self):
        if self.draft == "ngram" and self.mode != "ar":
            given = {field.name: getattr(self, field.name) for field in fields(self)}
            check_used({f.name: given[f.name] for f in fields(self) if f.name == "mode" or given[f.name] != f.default})
        if self.mode not in MODES:
            raise ValueError(f"mode: got {self.mode!r}, wanted one of {', '.join(MODES)}")
        if self.verify not in VERIFY:
            raise ValueError(f"verify: got {self.verify!r}, wanted one of {', '.join(VERIFY)}")
        check_number("saguaro", self.saguaro, "a number in [0, 1]", lambda x: 0 <= x <= 1)
        if self.saguaro < 1 and self.verify != "rejection":
            raise ValueError("saguaro: applies to rejection sampling only; add verify='rejection'")
        if self.k is not None:
            check_integer("k", self.k, f"1 to {MAX_NODES}", lambda x: 1 <= x <= MAX_NODES)
        if self.tree_width is not None:
            check_integer("tree_width", self.tree_width, "1 to 16", lambda x: 1 <= x <= 16)
        if self.k and self.k * self.width > MAX_NODES:
            raise ValueError(f"k: got {self.k} tokens by tree_width {self.width}, wanted at most {MAX_NODES} nodes")
        if self.branches is not None:
            check_integer("branches", self.branches, "1 to 128", lambda x: 1 <= x <= 128)
        if self.fan_out is not None:
            if self.branches is not None:
                raise ValueError(f"branches: got {self.branches} with fan_out {self.fan_out}, wanted one of the two")
            check_integer("fan_out", self.fan_out, "1 to 16", lambda x: 1 <= x <= 16)
        if self.mode in ("ssd", "auto"):
            if self.mode == "ssd" and self.verify == "rejection" and self.width > 1:
                raise ValueError(f"tree_width: got {self.width}, wanted 1 for rejection in mode 'ssd'")
            if self.forest_nodes > MAX_ROWS:
                raise ValueError(
                    f"branches: got {self.outcomes}, which with k and tree_width make {self.forest_nodes} rows, wanted "
                    f"{MAX_ROWS}"
                )
        cores_of(self.draft_threads, "draft_threads")
        device_of(self.draft_device or "cpu", "draft_device")

    @property
    def width(self) -> int:
        """Branches below the root of a speculation whose shape is fixed."""
        return self.tree_width or 1

    @property
    def outcomes(self) -> int:
        """Branches of the speculation cache."""
        return self.fan_out * (self.branch_nodes + 1) if self.fan_out else self.branches or BRANCHES

    @property
    def depth(self) -> int:
        """Tokens of a branch that ssd prepares, at most."""
        return self.k or (4 if self.fan_out else LONGEST_SPECULATION - self.leaves)

    @property
    def leaves(self) -> int:
        """First levels of a branch of ssd that have a second token, which is not extended; where shapes adapt."""
        return 0 if self.k or self.tree_width or self.verify == "rejection" else LEAVES

    @property
    def branch_nodes(self) -> int:
        """Tokens of a speculation that ssd prepares, at most."""
        return self.depth * self.width + self.leaves

    @property
    def forest_nodes(self) -> int:
        """Nodes that the draft lane computes for a sequence, at most."""
        return self.branch_nodes + self.outcomes * (1 + self.branch_nodes)

    @property
    def sync_nodes(self) -> int:
        """Tokens of a speculation that is drafted while the target waits, at most."""
        return self.k * self.width if self.k else LONGEST_SPECULATION

    @property
    def nodes(self) -> int:
        """Tokens of a speculation, at most."""
        return {"ar": 0, "ssd": self.branch_nodes}.get(self.mode, max(self.branch_nodes, self.sync_nodes))

    @property
    def draft_nodes(self) -> int:
        """Nodes of a sequence of which a draft keeps KV, at most."""
        return self.sync_nodes if self.mode == "sd" else max(self.forest_nodes, self.sync_nodes)

    @property
    def rule(self) -> str:
        """How the engine verifies."""
        return "plain" if self.mode == "ar" else self.verify


@dataclass(frozen=True)
class EngineOptions:
    """Sizes and threads of an engine. Raises ValueError or TypeError naming the field."""

    max_batch: int = 8  # requests that decode together
    max_model_len: int | None = None  # tokens of prompt and answer; None, and at most: the model's context
    # tokens that the KV caches of target and draft hold, shared by all requests; None: max_batch full contexts, as far
    # as they fit into free memory, on the CPU no more than 32,768 tokens or one full context, whichever is more. Where
    # requests need more, the latest arrival waits
    kv_tokens: int | None = None
    prefill_chunk: int = 512  # rows of prompts in one pass
    prefix_caching: bool = True  # requests that begin alike share what was computed, also with earlier ones
    threads: int | list[int] | None = None  # a number of threads, or cores to bind them to; None: one for each core
    seed: int = 0  # with the number of a request, the seed of a request that names none
    device: str = "cpu"  # of the target: "cpu", "cuda" or "cuda:N"
    # of prompts: "tree" (an answer depends on its request alone), or on a GPU "flash" (the package flash-attn, for
    # prompts of more than 64 rows a pass; the last bits then depend on how they were cut into chunks)
    prompt_attention: str = "tree"

    def __post_init__(self):
        for name in ("max_batch", "max_model_len", "kv_tokens", "prefill_chunk"):
            value = getattr(self, name)
            if value is not None:
                check_integer(name, value, "at least 1", lambda x: x >= 1)
        if not isinstance(self.prefix_caching, bool):
            raise TypeError(f"prefix_caching: got {self.prefix_caching!r}, wanted True or False")
        check_integer("seed", self.seed, "0 <= seed < 2^63", lambda x: 0 <= x < 2**63)
        cores_of(self.threads)
        device_of(self.device)
        check_prompt_attention(self.prompt_attention)

    def longest(self, context: int) -> int:
        """Tokens of a request at most, for a model of that context."""
        return min(context, self.max_model_len or context)

    def size_kv(self, parts: list[KVPart], longest: int) -> int:
        """The tokens of KV that requests share, see devices/kv_memory.py. longest: of a request."""
        most = self.max_batch * longest
        return size_kv(parts, self.kv_tokens, min(most, max(longest, DEFAULT_KV_TOKENS)), most)
