"""What the command and the engine agree on; imports nothing, so that `--help` answers at once."""

from collections.abc import Callable, Mapping

DEFAULT_TARGET = "SmolLM2-135M-Instruct"
DTYPES = ("bf16", "int8", "q4", "fp32")
PROMPT_ATTENTION = ("tree", "flash")
ANY_DRAFT = ("draft", "k", "tree_width", "verify", "saguaro")
DRAFT_MODEL = ("draft_dtype", "draft_device")
DRAFT_LANE = ("branches", "fan_out", "draft_threads", "backup_draft", "lockstep")
SPECULATION = ("mode", *ANY_DRAFT, *DRAFT_MODEL, *DRAFT_LANE)


def check_used(given: Mapping[str, object], spell: Callable[[str], str] = str) -> None:
    """Raise ValueError for an option of speculation that cannot change anything beside the others.

    given: values by name, mode among them, without those that were left alone. spell: from a name to what the person
    wrote.
    """
    for name in given:
        if need := _lacks(name, given, spell):
            raise ValueError(f"{spell(name)}: needs {need}")


def check_prompt_attention(name: str) -> None:
    if name not in PROMPT_ATTENTION:
        raise ValueError(f"prompt_attention: got {name!r}, wanted {' or '.join(PROMPT_ATTENTION)}")


def used(given: Mapping[str, object]) -> dict:
    """The options without those that check_used refuses, for programs that try the same options in many modes."""
    return {name: value for name, value in given.items() if not _lacks(name, given, str)}


def _lacks(name: str, given: Mapping[str, object], spell: Callable[[str], str]) -> str | None:
    if name == "mode" or name not in SPECULATION:
        return None
    if given["mode"] == "ar":
        return f"a mode that speculates ({spell('mode')} sd, ssd or auto)"
    if name in DRAFT_MODEL + DRAFT_LANE and given.get("draft") == "ngram":
        return f"a draft model, which {spell('draft')} ngram does without"
    if name in DRAFT_LANE and given["mode"] == "sd":
        return f"a draft that runs beside the target ({spell('mode')} ssd or auto)"
    if name in DRAFT_LANE and given["mode"] == "auto" and given.get("verify") == "rejection":
        return f"{spell('mode')} ssd, since auto with {spell('verify')} rejection never drafts beside the target"
    return None
