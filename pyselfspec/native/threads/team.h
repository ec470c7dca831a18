// A thread and its helpers, which run one function together and meet at barriers. Knows nothing of OpenMP.
#pragma once

#include <cstdint>

using selfspec_work = void (*)(void * data);

// Runs work(data) in n_threads threads, of which the calling one is number 0, and returns when all have finished. Helpers wait
// for the next call of the thread that they belong to. Fewer threads take part where the system gives no more, and in a
// function that a team runs it is one.
void selfspec_team_run(selfspec_work work, void * data, unsigned n_threads);

// In a function that a team runs; elsewhere the calling thread is alone.
unsigned selfspec_team_size();
unsigned selfspec_team_index();
void     selfspec_team_barrier();

// True in the first thread that gets to a place; every thread calls it equally often.
bool selfspec_team_first();

// How often a waiting thread looks before it sleeps, from the settings of GCC's OpenMP: GOMP_SPINCOUNT, such as "20k" or
// "infinite", or else OMP_WAIT_POLICY, "active" or "passive". Null where they are not set.
uint64_t selfspec_team_spins(const char * spin_count, const char * wait_policy);
