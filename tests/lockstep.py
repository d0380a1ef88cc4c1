"""Both lanes of SSD in one thread: the draft lane answers everything before the next verification asks."""

from ssd.runtime.draft_lane import DraftLane


def lockstep(monkeypatch, before=lambda lane: None):
    """Draft lanes made from now on run when the verify lane proposes; before(lane) is called first."""
    from ssd.runtime import draft_lane, lanes

    monkeypatch.setattr(DraftLane, "start", lambda self: None)
    monkeypatch.setattr(DraftLane, "join", lambda self, timeout: None)
    monkeypatch.setattr(draft_lane, "WAIT_US", 0)
    propose = lanes.Lanes.propose

    def stepped(self, plan):
        self._check()
        if self.lane:
            for work in plan:
                if work.sequence.decoding and work.sequence not in self.slot_of:
                    self._assign(work.sequence)
            try:
                before(self.lane)
                self.lane.step()
            except Exception as e:
                self.lane.error = e
        return propose(self, plan)

    monkeypatch.setattr(lanes.Lanes, "propose", stepped)
