// Prints the pieces that threads share, one a line, with row after the last for every range.
//   chunks N_MATRICES N_ROWS N_THREADS             matrix, rows
//   chunks N_HEADS N_UNITS N_QUERIES N_THREADS     thread, head, units, queries: results of attention
#include "chunks.h"

#include <cstdio>
#include <cstdlib>

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
    const int n_threads = atoi(argv[4]);
    const selfspec::HeadPieces pieces(atoi(argv[1]), atoi(argv[2]), atoi(argv[3]), n_threads);
    for (int thread = 0; thread < n_threads; thread++) {
        selfspec::share(pieces.n, thread, n_threads, [&](int64_t i) {
            const selfspec::HeadPiece p = pieces.piece(i);
            printf("%d %d %d %d %d %d\n", thread, (int) p.head, (int) p.unit0, (int) p.unit1, (int) p.query0, (int) p.query1);
        });
    }
}
