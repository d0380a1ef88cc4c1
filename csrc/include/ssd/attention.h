// What every form of tree attention, its plans and its tests agree on.
#pragma once

namespace ssd {

constexpr int kSpan = 256;  // positions reduced before a merge: part of the arithmetic, not a tuning knob

}  // namespace ssd
