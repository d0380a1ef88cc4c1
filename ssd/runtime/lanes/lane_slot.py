"""What the verify lane keeps for each sequence that the draft lane works for."""

from dataclasses import dataclass

from ..engine.sequence import Sequence
from ..engine.tree import Tree


@dataclass(eq=False)
class LaneSlot:
    """One sequence while it has a slot of the speculation cache. The draft lane reads what is marked so."""

    index: int  # slot of the cache
    owner: int  # number of this assignment, never used again (read by the draft lane)
    sequence: Sequence
    processors: list  # copies of the sequence's logits processors (read by the draft lane)
    next: Tree | None = None  # what is verified next
    waits: bool = False  # for a speculation of its own after a miss (read by the draft lane)
    fresh: bool = True  # its first outcome is still to come: it counts as neither hit nor miss


class LaneSlots:
    """The slots of a speculation cache, by sequence. owners: the records by owner number, for the draft lane: one is
    there before the cache names its owner."""

    def __init__(self, count: int):
        self.free = list(range(count))[::-1]
        self.by_sequence: dict[Sequence, LaneSlot] = {}
        self.owners: dict[int, LaneSlot] = {}
        self.assigned = 0  # so far

    def __len__(self) -> int:
        return len(self.by_sequence)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self.by_sequence

    def __getitem__(self, sequence: Sequence) -> LaneSlot:
        return self.by_sequence[sequence]

    def get(self, sequence: Sequence) -> LaneSlot | None:
        return self.by_sequence.get(sequence)

    @property
    def waiting(self) -> list[LaneSlot]:
        return [slot for slot in self.by_sequence.values() if slot.waits]

    def assign(self, sequence: Sequence) -> LaneSlot:
        self.assigned += 1
        processors = [processor.copy() for processor in sequence.logits_processors]
        slot = LaneSlot(self.free.pop(), self.assigned, sequence, processors)
        self.by_sequence[sequence] = self.owners[slot.owner] = slot
        return slot

    def forget(self, sequence: Sequence) -> LaneSlot | None:
        """Free the slot of a sequence; None where it has none."""
        slot = self.by_sequence.pop(sequence, None)
        if slot:
            del self.owners[slot.owner]
            self.free.append(slot.index)
        return slot
