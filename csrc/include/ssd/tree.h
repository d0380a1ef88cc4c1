// A speculation: a tree of tokens below a root. Plain header: for C++ and CUDA.
#pragma once
#include <cstdint>

#include "philox.h"

namespace ssd {

// How a proposal was made. Rejection sampling needs to know; the coupled rule is exact for every kind.
enum Kind : int8_t {
  kCoupledKind = 0,        // with the target's own noise
  kSampledKind = 1,        // from q with noise of its own, siblings without replacement
  kDeterministicKind = 2,  // in any other way that does not look at the target's noise
};

// The first child of node (-1: the root) from index `from` on that carries token (any token if < 0), or -1.
// Parents come before their children.
SSD_HD int find_child(const int32_t* tokens, const int8_t* parents, int nodes, int node, int64_t token, int from) {
  for (int i = from > node ? from : node + 1; i < nodes; ++i)
    if (parents[i] == node && (token < 0 || tokens[i] == token)) return i;
  return -1;
}

}  // namespace ssd
