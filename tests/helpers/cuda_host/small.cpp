// One instance of tree attention, for builds with planted faults.
#include "attention.h"

int main(int argc, char** argv) {
  return cuda_host::run_cases(argc, argv, [](cuda_host::Case& c) {
    cuda_host::planted = int(c.integer("planted"));
    cuda_host::attention<ssd::gpu::bf16>(c);
  });
}
