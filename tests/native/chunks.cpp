// Prints the pieces that threads share the rows of so many matrices in: matrix, first row, row after the last.
#include "chunks.h"

#include <cstdio>
#include <cstdlib>

int main(int argc, char ** argv) {
    if (argc != 4) {
        return 2;
    }
    const selfspec::Chunks chunks(atoi(argv[1]), atoi(argv[2]), atoi(argv[3]));
    for (int64_t i = 0; i < chunks.n; i++) {
        const selfspec::Piece piece = chunks.piece(i);
        printf("%d %d %d\n", (int) piece.matrix, (int) piece.row0, (int) piece.row1);
    }
}
