#include "kernels.h"

#include <stdexcept>
#include <string>

namespace ssd {
namespace {

const Kernels* choose(const std::string& want) {
  std::vector<const Kernels*> found = {&kernels_portable};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) found.push_back(&kernels_avx2);
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vnni"))
    found.push_back(&kernels_avx512);
#endif
  if (want == "auto") return found.back();
  for (auto* k : found)
    if (want == k->isa) return k;
  throw std::invalid_argument("isa: got '" + want +
                              "', wanted 'auto' or an instruction set of this CPU (best: " + found.back()->isa + ")");
}

std::atomic<const Kernels*> chosen{nullptr};

}  // namespace

const Kernels& kernels() {
  const Kernels* k = chosen.load(std::memory_order_relaxed);
  if (!k) chosen = k = choose("auto");
  return *k;
}

void set_isa(const char* name) { chosen = choose(name); }

}  // namespace ssd
