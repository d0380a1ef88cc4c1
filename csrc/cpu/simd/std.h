// Standard headers, included before a target is set, so that no shared inline
// function of theirs is compiled for a CPU that may not be there.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <thread>
#include <utility>
#include <vector>
