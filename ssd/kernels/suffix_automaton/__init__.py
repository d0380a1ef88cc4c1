"""Finds what followed the longest repeated suffix of a text at its earlier places."""

import torch

from .. import library  # noqa: F401


class SuffixAutomaton:
    """A growing text of tokens with its suffix automaton (Blumer et al., 1985), on the CPU.

    A token costs O(log n), amortised, and at most 200 bytes.
    """

    def __init__(self):
        self.state = torch.ops.ssd.suffix_automaton()

    def follow(self, tokens: torch.Tensor, width: int, limit: int) -> tuple[int, list[list[int]]]:
        """Append tokens, int64 [n] from 0 to 2^31 - 1, and say what may follow.

        Returns the length of the longest suffix that occurred before (0: none), and for each different token that
        followed it, at most `width` of them, the next `limit` tokens behind the newest such occurrence; the newest
        occurrence comes first. Where these reach the end of the text they go on as the text repeated from there, so
        that a loop is continued. Raises ValueError or TypeError that names the argument; nothing is appended then.
        """
        length, found = torch.ops.ssd.suffix_follow(self.state, tokens, width, limit)
        return length, found.tolist()

    def __len__(self) -> int:
        return torch.ops.ssd.suffix_size(self.state)[0]

    @property
    def nbytes(self) -> int:
        """The memory in bytes."""
        return torch.ops.ssd.suffix_size(self.state)[1]


@torch.library.register_fake("ssd::suffix_follow")
def _(automaton, tokens, width, limit):
    context = torch.library.get_ctx()
    return context.new_dynamic_size(), tokens.new_empty(context.new_dynamic_size(), limit)
