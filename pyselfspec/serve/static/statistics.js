// The server's statistics of an answer, and sums over the parts of a continued one.

const COUNTS = ["n_generated", "n_steps", "n_drafted", "n_accepted"];
const LISTS = ["n_drafted_at", "n_accepted_at", "sources"]; // by position, and those by source
const TIMES = ["prefill_us", "draft_us", "verify_us", "total_us"];

// Sums of two parts of an answer; null if the statistics of one are missing.
export function merged(one, other) {
  if (!one || !other) return null;
  const names = [...COUNTS, ...LISTS, ...TIMES];
  const sums = Object.fromEntries(names.map((name) => [name, plus(one[name], other[name])]));
  const us = sums.total_us - sums.prefill_us;
  return {
    ...other,
    ...sums,
    tokens_per_step: sums.n_steps ? sums.n_generated / sums.n_steps : null,
    tokens_per_second: us > 0 ? (sums.n_generated * 1e6) / us : null,
    estimated_speedup: meanSpeedup(one, other),
  };
}

// Of numbers, or of arrays and objects of numbers, place by place; what is missing counts as 0.
function plus(one, other) {
  if (typeof (one ?? other ?? 0) === "number") return (one ?? 0) + (other ?? 0);
  const sums = Object.keys({...one, ...other}).map((at) => [at, plus(one?.[at], other?.[at])]);
  return Array.isArray(one ?? other) ? sums.map(([, sum]) => sum) : Object.fromEntries(sums);
}

// Mean of the estimates weighted by the time of passes; null if one is missing.
function meanSpeedup(one, other) {
  const [a, b] = [one, other].map(({draft_us, verify_us}) => draft_us + verify_us);
  if (!one.estimated_speedup || !other.estimated_speedup || !(a + b)) return null;
  return (one.estimated_speedup * a + other.estimated_speedup * b) / (a + b);
}
