// Runs before the first paint, so that a chosen theme does not flash. A classic script for
// that reason; the switch itself is in app.js.
try {
  const theme = localStorage.getItem('spliced-theme');
  if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme;
} catch { /* storage is off: the system's theme */ }
