// Package baseline runs the programs with which the benchmark compares its figures: fio and a
// loop of direct transfers for the disk tier, a Redis that syncs every write, OpenBLAS for
// compose, and a bare socket echo for requests. They alternate with the measured code, in one
// process and on the same data. If a program is not installed, an error says so and its rows are
// left out.
package baseline
