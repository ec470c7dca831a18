// KV-cell reservations per sequence, and the check that the cells of a sequence ascend.

#include "kv/placement.h"
#include "session/session.h"

#include "llama-context.h"
#include "llama-kv-cache-iswa.h"
#include "llama-kv-cache.h"
#include "llama-memory-hybrid-idx.h"
#include "llama-memory-hybrid-iswa.h"
#include "llama-memory-hybrid.h"

#include <algorithm>

// Returns the caches whose cells may be moved, which no other cache mirrors.
std::vector<llama_kv_cache *> selfspec_session::caches() const {
    const auto both = [](const llama_kv_cache_iswa & iswa) -> std::vector<llama_kv_cache *> {
        return { iswa.get_base(), iswa.get_swa() };
    };
    auto * mem = ctx->get_memory();
    if (dynamic_cast<llama_memory_hybrid_idx *>(mem)) {
        return {}; // the cells of its indexer are those of its attention
    }
    if (auto * cache = dynamic_cast<llama_kv_cache *>(mem)) {
        return { cache };
    }
    if (const auto * iswa = dynamic_cast<llama_kv_cache_iswa *>(mem)) {
        return both(*iswa);
    }
    if (const auto * hybrid = dynamic_cast<llama_memory_hybrid *>(mem)) {
        return { hybrid->get_mem_attn() };
    }
    if (const auto * hybrid = dynamic_cast<llama_memory_hybrid_iswa *>(mem)) {
        return both(*hybrid->get_mem_attn());
    }
    return {};
}

selfspec_session::~selfspec_session() {
    for (llama_kv_cache * cache : caches()) {
        cache->selfspec = {}; // the context may outlive its session
    }
}

void selfspec_session::allow_moves() {
    for (llama_kv_cache * cache : caches()) {
        cache->selfspec.can_move = true;
    }
}

void selfspec_session::reserve(int32_t seq_id, int32_t n) {
    selfspec_require_seq(facts(), seq_id);
    if (!(memory_bits() & SELFSPEC_MEMORY_SCATTER)) {
        return; // order alone would not make results equal, and cells that are far apart make passes slower
    }
    for (llama_kv_cache * cache : caches()) {
        auto & room = cache->selfspec;
        if (seq_id >= (int32_t) room.reserved.size()) {
            room.reserved.resize(seq_id + 1, selfspec_kv_reservations::UNKNOWN);
        }
        room.reserved[seq_id] = std::max(n, selfspec_kv_reservations::UNKNOWN);
    }
}

bool selfspec_session::in_order(int32_t seq_id) const {
    selfspec_require_seq(facts(), seq_id);
    const auto all = caches();
    return std::all_of(all.begin(), all.end(), [&](const llama_kv_cache * cache) {
        return selfspec_ascends(selfspec_cache::cells_of(*cache), seq_id);
    });
}

int64_t selfspec_session::n_moves() const {
    int64_t n = 0;
    for (const llama_kv_cache * cache : caches()) {
        n += cache->selfspec.n_moves;
    }
    return n;
}
