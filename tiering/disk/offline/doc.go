// Package offline works on the directory of a disk tier that no daemon has: it checks
// it, dumps it, repairs it and rebuilds its rows from the extents. It takes the
// directory's lock while it does.
package offline
