// Where the threads that compute a graph wait for each other, see selfspec_meets().
#pragma once

namespace selfspec {

// What all threads know of the activations of a product before they compute it.
enum class Inputs {
    unready,         // each thread prepares a share, then they meet
    only_with_first, // the first thread prepares them, since it alone has computed them; then they meet
    ready,           // an earlier product has left them in the work memory
};

// Products that may share activations: each needs counts of its own of the pieces that were taken.
constexpr int MAX_SHARING = 4;

}  // namespace selfspec
