// Package machine reads and prepares the computer that a benchmark runs on: its description, the
// resources used by processes, a scratch directory on the measured disk, and page-aligned
// memory. It does not depend on what is measured.
package machine
