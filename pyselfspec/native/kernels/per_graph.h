// What a thread keeps of the graphs that it has computed last.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace selfspec {

// A T for a graph and a number of threads. Graphs are known by ggml's uid, which does not change while a graph is computed again and
// again, with the same tensors at the same addresses; 0 is no uid.
template <typename T> class PerGraph {
public:
    // Returns what is kept; else a new T, in place of the oldest.
    T & of(uint64_t uid, int n_threads) {
        const auto is_it = [&](const Entry & entry) { return entry.uid == uid && entry.n_threads == n_threads; };
        const auto found = std::find_if(entries.begin(), entries.end(), is_it);
        if (found != entries.end()) {
            return found->value;
        }
        Entry & entry = entries[next++%entries.size()];
        entry = {uid, n_threads, T()};
        return entry.value;
    }

private:
    struct Entry {
        uint64_t uid = 0;
        int      n_threads = 0;
        T        value;
    };
    std::array<Entry, 32> entries;  // passes of several widths, of a few models
    size_t                next = 0;
};

}  // namespace selfspec
