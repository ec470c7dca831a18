// Runs before the first paint, so that a chosen theme does not flash; see store.js.
"use strict";
try {
  const theme = JSON.parse(localStorage.getItem("pyselfspec.theme"));
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // a browser that keeps nothing follows the system's theme
}
