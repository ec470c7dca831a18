// The choice of cells in a K/V cache: for the rows of a batch, and for cells that must be moved.

#pragma once

#include "graph/selfspec-hooks.h"

#include "llama-batch.h"
#include "llama-kv-cells.h"

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

// The sequences that a row of a batch belongs to.
struct selfspec_row {
    const llama_seq_id * seq_ids;
    int32_t              n;

    llama_seq_id first() const { return seq_ids[0]; }
};

std::vector<selfspec_row> selfspec_rows_of(const llama_ubatch & ubatch);

// The sequences that hold cells or will get some, and the number of cells that each of them will need.
class selfspec_needs {
public:
    selfspec_needs(const llama_kv_cells & cells, const selfspec_kv_reservations & room, const std::vector<selfspec_row> & rows);

    bool     is_known(llama_seq_id seq_id) const { return room.of(seq_id) != selfspec_kv_reservations::UNKNOWN; }
    uint32_t n_pending(llama_seq_id seq_id) const; // rows without a cell so far
    uint32_t firm(llama_seq_id seq_id) const;      // cells that it has reserved, or needs for its rows
    uint32_t soft(llama_seq_id seq_id) const;      // cells that it gets if there is room: a sequence of unknown length may double
    uint32_t total_firm() const;

    void placed(const selfspec_row & row);

    const std::vector<llama_seq_id> & sequences() const { return active; }

private:
    const llama_kv_cells & cells;
    const selfspec_kv_reservations  & room;

    std::vector<llama_seq_id>        active;
    std::map<llama_seq_id, uint32_t> pending;
    std::map<llama_seq_id, uint32_t> n_placed; // rows that have got a cell since
};

struct selfspec_placed {
    std::vector<uint32_t> cells;              // one for each row; empty if there are not enough
    bool                  disordered = false; // a row got a cell below those of its sequence
    bool                  crowded    = false; // a sequence did not get the room that it has reserved
};

// Finds free cells for rows. A sequence continues in the cells above its last one. A sequence that cannot, or that begins,
// gets the first run of free cells with room for its reservation besides those of the other sequences there. If that leaves
// no cell above those of its sequence for some row, all rows are placed again, as tightly as possible.
selfspec_placed selfspec_place(const llama_kv_cells & cells, const selfspec_kv_reservations & room, const std::vector<selfspec_row> & rows);

// Whether cells must be moved first: a row found no cell in order, or a sequence did not get the room that it has reserved
// although there is room for all reservations.
bool selfspec_needs_moves(const selfspec_placed & placed, const llama_kv_cells & cells, const selfspec_needs & needs);

// Pairs (from, to) of cells. Cells that stay are left out.
using selfspec_moves = std::vector<std::pair<uint32_t, uint32_t>>;

// Returns moves that make room above the last cell of every sequence. Afterwards the cells of each sequence, including
// shared ones, ascend with its positions.
selfspec_moves selfspec_spread(const llama_kv_cells & cells, const selfspec_needs & needs);

// Moves the metadata of cells. If memory runs out, all cells are left empty and the exception is passed on.
void selfspec_apply(llama_kv_cells & cells, const selfspec_moves & from_to);

// Whether the cells of a sequence ascend with its positions.
bool selfspec_ascends(const llama_kv_cells & cells, llama_seq_id seq_id);
