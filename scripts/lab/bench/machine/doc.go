// Package machine is what a benchmark needs of the computer it runs on: its
// description, what processes used of it, a scratch directory on the disk that is
// measured, and page-aligned memory. It knows nothing of what is measured.
package machine
