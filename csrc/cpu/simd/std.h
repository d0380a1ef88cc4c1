// Standard headers. They are included before a target is set, so that none of their shared inline functions is compiled
// for a CPU that the machine may not have.
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
