// Package baseline runs what our figures are compared with: fio and a loop of
// direct transfers beside the disk tier, a Redis that syncs every write, OpenBLAS
// beside compose, and a bare socket echo beside every request. They run in turn
// with what they are compared to, in one process and on the same data; a program
// that is not installed is an error that says so, and its rows are left out.
package baseline
