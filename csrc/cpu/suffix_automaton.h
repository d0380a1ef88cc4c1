// The suffix automaton of a growing text (Blumer et al., 1985), which also knows where each state was seen last.
//
// A state stands for all substrings that end at the same places; its link leads to the longest suffix that ends at more
// of them. The link of the newest state is therefore the longest suffix of the text that occurred before. A new token
// marks every state on its chain of links as seen here. Long chains would make that quadratic, so they are kept as
// paths of a link-cut tree (Sleator and Tarjan, 1983) with one value per path: a token costs O(log n), amortised.
#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace ssd {

class SuffixAutomaton {
 public:
  SuffixAutomaton() : states_(2) { index_.assign(64, 0); }

  int64_t size() const { return int64_t(text_.size()); }

  void push(int32_t token) {
    text_.push_back(token);
    const int32_t n = int32_t(text_.size()), now = add_state(n);
    int32_t p = last_;
    for (; p && !find(p, token); p = states_[p].link) add_edge(p, token, now);
    int32_t link = root;
    if (p) {
      link = edges_[find(p, token)].target;
      if (states_[p].length + 1 < states_[link].length) link = split(p, token, link);
    }
    states_[now].link = states_[now].up = link;
    length_ = states_[link].length;
    before_ = last_seen(link);
    mark_seen(now, n);
    last_ = now;
  }

  // Length of the longest suffix that occurred before; 0 if even the last token is new.
  int64_t length() const { return length_; }

  // Where that suffix ended before, newest first: the newest occurrence for each different next token, `width` at most.
  void ends(int64_t width, std::vector<int32_t>& out) {
    out.clear();
    if (!length_ || width < 1) return;
    out.push_back(before_);
    if (width == 1) return;
    for (int32_t e = states_[states_[last_].link].first_edge; e; e = edges_[e].next)
      if (edges_[e].token != text_[before_]) out.push_back(last_seen(edges_[e].target) - 1);
    const int64_t kept = std::min<int64_t>(width, out.size());
    std::partial_sort(out.begin(), out.begin() + kept, out.end(), std::greater<>());
    out.resize(kept);
  }

  // Token `i` of those that followed an occurrence ending at `end`; past the end of the text they repeat.
  int32_t following(int32_t end, int64_t i) const { return text_[end + i % (size() - end)]; }

  int64_t bytes() const {
    return text_.capacity() * sizeof(int32_t) + states_.capacity() * sizeof(State) + edges_.capacity() * sizeof(Edge) +
           index_.capacity() * sizeof(int32_t);
  }

 private:
  static constexpr int32_t root = 1;  // the empty text; 0 stands for no state and for no edge
  struct State {
    int32_t length = 0, link = 0, first_edge = 0;
    int32_t up = 0, child[2] = {0, 0};  // splay tree of a path, by length; its root's `up` is the path's parent
    int32_t seen = 0;  // where all states of the path ended last; valid at the root of its splay tree
  };
  struct Edge { int32_t source, token, target, next; };

  int32_t add_state(int32_t length) {
    states_.emplace_back().length = length;
    return int32_t(states_.size() - 1);
  }

  // Makes a state between `q` and its link, for the suffixes of p's longest text with `token` appended, which now end
  // elsewhere too.
  int32_t split(int32_t p, int32_t token, int32_t q) {
    const int32_t clone = add_state(states_[p].length + 1);
    for (int32_t e = states_[q].first_edge; e; e = edges_[e].next) add_edge(clone, edges_[e].token, edges_[e].target);
    splay(q);  // the clone ended where q did, so it joins the same path, just above
    const int32_t above = states_[q].child[0];
    states_[clone].child[0] = above;
    states_[clone].up = q;
    if (above) states_[above].up = clone;
    states_[q].child[0] = clone;
    states_[clone].link = states_[q].link;
    states_[q].link = clone;
    for (int32_t e; p && edges_[e = find(p, token)].target == q; p = states_[p].link) edges_[e].target = clone;
    return clone;
  }

  // ---- edges, in a hash table with open addressing ----

  uint64_t bucket(int32_t source, int32_t token) const {
    const uint64_t key = (uint64_t(uint32_t(source)) << 32 | uint32_t(token)) * 0x9E3779B97F4A7C15;
    return (key ^ key >> 29) & (index_.size() - 1);
  }

  int32_t find(int32_t source, int32_t token) const {
    for (uint64_t i = bucket(source, token);; i = (i + 1) & (index_.size() - 1)) {
      const int32_t e = index_[i];
      if (!e || (edges_[e].source == source && edges_[e].token == token)) return e;
    }
  }

  void index_edge(int32_t e) {
    uint64_t i = bucket(edges_[e].source, edges_[e].token);
    while (index_[i]) i = (i + 1) & (index_.size() - 1);
    index_[i] = e;
  }

  void add_edge(int32_t source, int32_t token, int32_t target) {
    edges_.push_back({source, token, target, states_[source].first_edge});
    const int32_t e = states_[source].first_edge = int32_t(edges_.size() - 1);
    if (2 * edges_.size() <= index_.size()) return index_edge(e);
    index_.assign(2 * index_.size(), 0);
    for (int32_t i = 1; i <= e; i++) index_edge(i);
  }

  // ---- where a state was seen last ----

  bool is_top(int32_t x) const {
    const int32_t u = states_[x].up;
    return !u || (states_[u].child[0] != x && states_[u].child[1] != x);
  }

  void rotate(int32_t x) {
    const int32_t y = states_[x].up, z = states_[y].up;
    const bool right = states_[y].child[1] == x;
    if (is_top(y)) {
      states_[x].seen = states_[y].seen;
    } else {
      states_[z].child[states_[z].child[1] == y] = x;
    }
    const int32_t inner = states_[x].child[!right];
    states_[y].child[right] = inner;
    if (inner) states_[inner].up = y;
    states_[x].child[!right] = y;
    states_[y].up = x;
    states_[x].up = z;
  }

  void splay(int32_t x) {
    while (!is_top(x)) {
      const int32_t y = states_[x].up, z = states_[y].up;
      if (!is_top(y)) rotate((states_[y].child[1] == x) == (states_[z].child[1] == y) ? y : x);
      rotate(x);
    }
  }

  int32_t last_seen(int32_t x) {
    splay(x);
    return states_[x].seen;
  }

  // Marks all states from x up its links as ending at n.
  void mark_seen(int32_t x, int32_t n) {
    int32_t below = 0;
    for (int32_t u = x; u; below = u, u = states_[u].up) {
      splay(u);
      const int32_t cut = states_[u].child[1];
      if (cut) states_[cut].seen = states_[u].seen;
      states_[u].child[1] = below;
    }
    states_[below].seen = n;
  }

  std::vector<int32_t> text_;
  std::vector<State> states_;
  std::vector<Edge> edges_ = std::vector<Edge>(1);
  std::vector<int32_t> index_;
  int32_t last_ = root, before_ = 0;
  int64_t length_ = 0;
};

}  // namespace ssd
