// Where the rows of a batch go in a K/V cache, and where cells go when they have to be moved.

#pragma once

#include "selfspec-hooks.h"

#include "llama-batch.h"
#include "llama-kv-cells.h"

#include <cstdint>
#include <map>
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
    uint32_t soft(llama_seq_id seq_id) const;      // cells that it gets if there is room: a text of unknown length may double
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

struct selfspec_placed {
    std::vector<uint32_t> cells;              // one for each row; empty if there are not enough
    bool                  disordered = false; // a row got a cell below those of its sequence
    bool                  crowded    = false; // a sequence did not get the room that it was promised
};

// Free cells for rows. A sequence goes on in the cells above its last one. One that cannot, or begins, gets the first run
// of free cells that has room for all it was promised beside what others were promised there. Where that leaves a row no
// cell above those of its sequence, all rows are placed anew, as tightly as they can be.
selfspec_placed selfspec_place(const llama_kv_cells & cells, const selfspec_room & room, const std::vector<selfspec_row> & rows);

// Whether cells have to be moved first: a row found no place in order, or a text not the room that it was promised while all
// promises can be kept.
bool selfspec_needs_moves(const selfspec_placed & placed, const llama_kv_cells & cells, const selfspec_needs & needs);

// Which cell goes where, (from, to). Cells that stay are left out.
using selfspec_moves = std::vector<std::pair<uint32_t, uint32_t>>;

// Moves that make room above the last cell of every sequence: each one's cells ascend with its positions, those that
// several share included.
selfspec_moves selfspec_spread(const llama_kv_cells & cells, const selfspec_needs & needs);

// Moves what is known of cells. Where that fails for lack of memory, all of them are empty.
void selfspec_apply(llama_kv_cells & cells, const selfspec_moves & from_to);

// Whether the cells of a sequence ascend with its positions.
bool selfspec_ascends(const llama_kv_cells & cells, llama_seq_id seq_id);
