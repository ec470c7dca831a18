// Prints the pieces that threads share, one a line, with row after the last for every range.
//   chunks N_MATRICES N_ROWS N_THREADS             matrix, rows
//   chunks N_HEADS N_UNITS N_QUERIES N_THREADS     thread, head, units, queries: results of attention
//   chunks steal|keep in-turn|together N N_THREADS thread, piece: in the order in which each thread takes them
#include "chunks.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

static void print_shares(bool may_steal, bool together, int64_t n, int n_threads) {
    std::vector<selfspec::Taken>      taken(n_threads);
    std::vector<std::vector<int64_t>> pieces(n_threads);
    const auto run = [&](int thread) {
        selfspec::share_and_steal(n, thread, n_threads, taken.data(), may_steal, [&](int64_t i) { pieces[thread].push_back(i); });
    };
    std::vector<std::thread> threads;
    for (int i = 0; i < n_threads; i++) {
        threads.emplace_back(run, i);
        if (!together) {
            threads.back().join();
        }
    }
    for (int i = 0; i < n_threads; i++) {
        if (together) {
            threads[i].join();
        }
        for (int64_t piece : pieces[i]) {
            printf("%d %d\n", i, (int) piece);
        }
    }
}

int main(int argc, char ** argv) {
    if (argc == 4) {
        const selfspec::Chunks chunks(atoi(argv[1]), atoi(argv[2]), atoi(argv[3]));
        for (int64_t i = 0; i < chunks.n; i++) {
            const selfspec::Piece piece = chunks.piece(i);
            printf("%d %d %d\n", (int) piece.matrix, (int) piece.row0, (int) piece.row1);
        }
        return 0;
    }
    if (argc != 5) {
        return 2;
    }
    if (strcmp(argv[1], "steal") == 0 || strcmp(argv[1], "keep") == 0) {
        print_shares(strcmp(argv[1], "steal") == 0, strcmp(argv[2], "together") == 0, atoi(argv[3]), atoi(argv[4]));
        return 0;
    }
    const int n_threads = atoi(argv[4]);
    const selfspec::HeadPieces pieces(atoi(argv[1]), atoi(argv[2]), atoi(argv[3]), n_threads);
    for (int thread = 0; thread < n_threads; thread++) {
        selfspec::share(pieces.n, thread, n_threads, [&](int64_t i) {
            const selfspec::HeadPiece p = pieces.piece(i);
            printf("%d %d %d %d %d %d\n", thread, (int) p.head, (int) p.unit0, (int) p.unit1, (int) p.query0, (int) p.query1);
        });
    }
}
