// Cases and results as named byte arrays: u32 length, name, u64 bytes, data; an entry named "end" closes a case.
// Each array is a heap block of exactly its size, so that the sanitizer sees a kernel read past it.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>

namespace cuda_host {

struct Array {
  std::unique_ptr<char[]> data;
  size_t bytes = 0;
};

class Case {
 public:
  bool read(FILE* f) {
    entries_.clear();
    uint32_t length;
    while (std::fread(&length, 4, 1, f) == 1) {
      std::string name(length, ' ');
      uint64_t bytes;
      get(f, name.data(), length), get(f, &bytes, 8);
      Array& a = entries_[name];
      a.data.reset(new char[bytes]), a.bytes = bytes;
      get(f, a.data.get(), bytes);
      if (name == "end") return true;
    }
    return false;
  }
  // What the kernel may have changed: all arrays that the case calls results, names separated by commas.
  void write(FILE* f) const {
    std::string names = text("results") + ",end";
    for (size_t at = 0; at < names.size();) {
      const std::string name = names.substr(at, names.find(',', at) - at);
      at += name.size() + 1;
      const Array& a = find(name.c_str());
      uint32_t length = name.size();
      uint64_t bytes = a.bytes;
      std::fwrite(&length, 4, 1, f), std::fwrite(name.data(), 1, length, f), std::fwrite(&bytes, 8, 1, f);
      std::fwrite(a.data.get(), 1, bytes, f);
    }
  }
  bool has(const char* name) const { return entries_.count(name); }
  template <class T>
  T* array(const char* name) const {
    return reinterpret_cast<T*>(find(name).data.get());
  }
  template <class T>
  T* array_or_null(const char* name) const {
    return has(name) ? array<T>(name) : nullptr;
  }
  int64_t integer(const char* name) const { return *array<int64_t>(name); }
  std::string text(const char* name) const { return {find(name).data.get(), find(name).bytes}; }
  size_t bytes(const char* name) const { return find(name).bytes; }
  // A scratch or output array, filled with NaN.
  void fill(const char* name, size_t bytes) {
    Array& a = entries_[name];
    a.data.reset(new char[bytes]), a.bytes = bytes;
    std::fill_n(a.data.get(), bytes, char(0xff));
  }

 private:
  static void get(FILE* f, void* p, size_t n) {
    if (n && std::fread(p, 1, n, f) != n) std::fprintf(stderr, "case file ends early\n"), std::abort();
  }
  const Array& find(const char* name) const {
    auto it = entries_.find(name);
    if (it == entries_.end()) std::fprintf(stderr, "case has no %s\n", name), std::abort();
    return it->second;
  }
  std::map<std::string, Array> entries_;
};

template <class Run>
int run_cases(int argc, char** argv, Run run) {
  FILE* in = argc == 3 ? std::fopen(argv[1], "rb") : nullptr;
  FILE* out = in ? std::fopen(argv[2], "wb") : nullptr;
  if (!out) return std::fprintf(stderr, "usage: harness CASES RESULTS\n"), 2;
  Case c;
  while (c.read(in)) {
    run(c);
    c.write(out);
  }
  return std::fclose(out);
}

}  // namespace cuda_host
