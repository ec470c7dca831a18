// Sequences that begin, grow, fork, take back and end at random in a cache that is mostly full, placed as a cache does it:
//   cells SEED N_CELLS N_STEPS
// Prints the first thing that is wrong and ends with 1, or how many rows were placed and how often cells were moved.
//   cells N_CELLS N_EACH
// Two sequences of unknown length grow in turn; prints the cells in use, and those below the last one of them.
#include "kv/placement.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace {

constexpr llama_seq_id N_TEXTS = 4, N_SEQ = 8; // those from N_TEXTS on are drafts: forks for a few rows

struct cache {
    llama_kv_cells           cells;
    selfspec_kv_reservations room;
    int                      n_rows = 0, n_moves = 0;

    explicit cache(uint32_t n) { cells.resize(n); }

    int n_past(llama_seq_id s) const { return cells.seq_pos_max(s) + 1; }

    bool is_held(llama_seq_id s) const { return n_past(s) > 0; }

    void reserve(llama_seq_id s, int n) {
        room.reserved.resize(N_SEQ, selfspec_kv_reservations::UNKNOWN);
        room.reserved[s] = n;
    }

    void take_back(llama_seq_id s, int n_keep) {
        for (uint32_t i = 0; i < cells.size(); ++i) {
            if (cells.pos_in(i, n_keep, 1 << 30) && cells.seq_has(i, s)) {
                cells.seq_rm(i, s);
            }
        }
    }

    void fork(llama_seq_id from, llama_seq_id to, int n) {
        take_back(to, 0);
        for (uint32_t i = 0; i < cells.size(); ++i) {
            if (cells.pos_in(i, 0, n) && cells.seq_has(i, from)) {
                cells.seq_add(i, to);
            }
        }
    }

    void require(bool ok, const char * what) const {
        if (!ok) {
            printf("%s after %d rows\n", what, n_rows);
            exit(1);
        }
    }

    void require_order() const {
        for (llama_seq_id s = 0; s < N_SEQ; ++s) {
            require(selfspec_ascends(cells, s), "a sequence is out of order");
            const auto & held = cells.seq_pos_get(s);
            require(held.empty() || held.begin()->first == 0, "a sequence lost its beginning");
            require(held.empty() || (int) held.size() == n_past(s), "a sequence lost a cell");
        }
    }

    // false: no cells are left
    bool place(const std::vector<llama_seq_id> & seq_ids) {
        return place_shared(std::vector<std::vector<llama_seq_id>>(seq_ids.size()), seq_ids);
    }

    // others: further sequences of each row
    bool place_shared(std::vector<std::vector<llama_seq_id>> others, const std::vector<llama_seq_id> & seq_ids) {
        std::vector<selfspec_row> rows;
        for (size_t i = 0; i < seq_ids.size(); ++i) {
            others[i].insert(others[i].begin(), seq_ids[i]);
            rows.push_back({ others[i].data(), (int32_t) others[i].size() });
        }
        const selfspec_placed first = selfspec_place(cells, room, rows);
        if (first.cells.empty()) {
            require(cells.size() - cells.get_used() < rows.size(), "free cells were not found");
            return false;
        }
        const selfspec_needs needs(cells, room, rows);
        if (selfspec_needs_moves(first, cells, needs)) {
            selfspec_apply(cells, selfspec_spread(cells, needs));
            n_moves++;
            require_order();
        }
        const selfspec_placed second = selfspec_place(cells, room, rows);
        const auto &          idxs   = second.cells;
        require(idxs.size() == rows.size(), "moving took cells away");
        require(!second.disordered, "moving made no room");
        for (size_t i = 0; i < idxs.size(); ++i) {
            require(cells.is_empty(idxs[i]), "a used cell was given away");
            const int pos = n_past(seq_ids[i]);
            cells.pos_set(idxs[i], pos);
            for (const llama_seq_id s : others[i]) {
                cells.seq_add(idxs[i], s);
            }
            n_rows++;
        }
        require_order();
        return true;
    }
};

void grow_two(int n_cells, int n_each) {
    cache all(n_cells);
    for (int i = 0; i < n_each; i += 4) {
        for (const llama_seq_id s : { 0, 1 }) {
            all.place(std::vector<llama_seq_id>(4, s));
        }
    }
    printf("%d %d\n", (int) all.cells.get_used(), (int) all.cells.used_max_p1());
}

} // namespace

int main(int argc, char ** argv) {
    if (argc == 3) {
        grow_two(atoi(argv[1]), atoi(argv[2]));
        return 0;
    }
    if (argc != 4) {
        return 2;
    }
    std::mt19937 random(atoi(argv[1]));
    const int    n_cells = atoi(argv[2]);
    cache        all(n_cells);

    const auto below = [&](int n) { return (int) (random()%n); };

    for (int step = 0; step < atoi(argv[3]); ++step) {
        const llama_seq_id s = below(N_TEXTS), other = below(N_TEXTS);
        switch (below(12)) {
            case 0: // ends
                if (below(3) == 0) {
                    all.take_back(s, 0);
                    all.reserve(s, selfspec_kv_reservations::UNKNOWN);
                }
                break;
            case 1: // another request goes on from a prompt that it shares
                if (s != other && all.is_held(other) && below(4) == 0) {
                    all.fork(other, s, 1 + below(all.n_past(other)));
                    all.reserve(s, below(2) ? all.n_past(s) + below(n_cells/N_TEXTS) : selfspec_kv_reservations::UNKNOWN);
                }
                break;
            case 2:
                if (all.is_held(s)) {
                    all.take_back(s, 1 + below(all.n_past(s)));
                }
                break;
            case 3:
                all.reserve(s, below(3) ? all.n_past(s) + below(n_cells/N_TEXTS) : selfspec_kv_reservations::UNKNOWN);
                break;
            case 4: // a draft in a fork, and rows of its text beside it
                if (all.is_held(s)) {
                    const llama_seq_id draft = N_TEXTS + below(N_SEQ - N_TEXTS);
                    all.fork(s, draft, all.n_past(s) - below(2));
                    all.place(std::vector<llama_seq_id>(1 + below(5), draft));
                    if (below(2)) {
                        all.place({ s, draft, s });
                    }
                    all.fork(s, draft, all.n_past(s)); // branches that begin with the same row
                    all.place_shared({ { draft }, {}, {} }, { s, s, draft });
                }
                break;
            case 5:
                for (llama_seq_id draft = N_TEXTS; draft < N_SEQ; ++draft) {
                    all.take_back(draft, 0);
                }
                break;
            default: { // rows of some texts in any order
                std::vector<llama_seq_id> rows(1 + below(9), s);
                rows.insert(rows.end(), below(5), other);
                std::shuffle(rows.begin(), rows.end(), random);
                if (!all.place(rows)) {
                    all.take_back(s, 0);
                    all.reserve(s, selfspec_kv_reservations::UNKNOWN);
                }
            }
        }
    }
    printf("%d rows, %d moves\n", all.n_rows, all.n_moves);
}
