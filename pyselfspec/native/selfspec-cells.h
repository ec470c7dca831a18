// Where the rows of a batch go in a K/V cache, and where cells go when they have to be moved.

#pragma once

#include "selfspec-hooks.h"

#include "llama-batch.h"
#include "llama-kv-cells.h"

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

// A row of a batch, by the sequences that it belongs to.
struct selfspec_row {
    const llama_seq_id * seq_ids;
    int32_t              n;

    llama_seq_id first() const { return seq_ids[0]; }
};

std::vector<selfspec_row> selfspec_rows_of(const llama_ubatch & ubatch);

// The sequences that hold cells or get some, and what room each of them will need.
class selfspec_needs {
public:
    selfspec_needs(const llama_kv_cells & cells, const selfspec_room & room, const std::vector<selfspec_row> & rows);

    bool     is_known(llama_seq_id seq_id) const { return room.of(seq_id) != selfspec_room::UNKNOWN; }
    uint32_t n_pending(llama_seq_id seq_id) const; // rows without a cell so far
    uint32_t firm(llama_seq_id seq_id) const;      // cells that it was promised, or needs for its rows
    uint32_t soft(llama_seq_id seq_id) const;      // cells that it had better get, too: a text of unknown length may double
    uint32_t total_firm() const;

    void placed(const selfspec_row & row);

    const std::vector<llama_seq_id> & sequences() const { return active; }

private:
    const llama_kv_cells & cells;
    const selfspec_room  & room;

    std::vector<llama_seq_id>        active;
    std::map<llama_seq_id, uint32_t> pending;
    std::map<llama_seq_id, uint32_t> n_placed; // rows that have got a cell since
};

// Finds free cells row by row. A cell that one row was given is no longer free for the next.
//
// A sequence goes on in the cells above its last one. One that cannot, or begins, gets the first run of free cells that
// has room for all it was promised beside what others were promised there.
class selfspec_cell_finder {
public:
    selfspec_cell_finder(const llama_kv_cells & cells, const selfspec_room & room, std::vector<selfspec_row> rows);

    // A cell for each row; empty if there are not enough.
    std::vector<uint32_t> find_all();

    bool is_disordered() const { return disordered; } // a row got a cell below those of its sequence
    bool is_crowded()    const { return crowded; }    // a sequence did not get the room that it was promised

private:
    struct run {
        uint32_t begin = 0;
        uint32_t size  = 0;
        uint32_t end() const { return begin + size; }
    };

    std::optional<uint32_t> find(const selfspec_row & row);
    std::optional<uint32_t> jump(llama_seq_id seq_id, uint32_t above);
    std::optional<uint32_t> above_all(const selfspec_row & row) const;
    std::optional<uint32_t> front(llama_seq_id seq_id, uint32_t begin) const;

    bool is_free(uint32_t cell) const { return cells.is_empty(cell) && !taken.count(cell); }
    bool is_contested(llama_seq_id seq_id, uint32_t cell) const;
    bool may_pass(llama_seq_id seq_id, uint32_t cell) const;
    bool is_draft_of(llama_seq_id seq_id, llama_seq_id other) const;
    bool holds_last_of(llama_seq_id seq_id, llama_seq_id other) const;

    std::optional<uint32_t> last_of(llama_seq_id seq_id) const;
    std::vector<run>        free_runs(uint32_t above) const;
    std::map<uint32_t, std::vector<llama_seq_id>> fronts_beside(llama_seq_id seq_id) const;

    const llama_kv_cells      & cells;
    std::vector<selfspec_row>   rows;
    selfspec_needs              needs;

    std::map<uint32_t, selfspec_row> taken; // by rows of this batch
    std::map<llama_seq_id, uint32_t> last;  // cell of the sequence among these

    bool disordered = false;
    bool crowded    = false;
};

// Where to move which cell, (from, to), so that there is room above the last cell of every sequence: each one's cells
// ascend with its positions, those that several share included. Cells that stay are left out.
std::vector<std::pair<uint32_t, uint32_t>> selfspec_spread(const llama_kv_cells & cells, const selfspec_needs & needs);

// Whether the cells of a sequence ascend with its positions.
bool selfspec_ascends(const llama_kv_cells & cells, llama_seq_id seq_id);
