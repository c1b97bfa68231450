// Package schema describes the protocol once: its operations, messages, numbers
// and bounds. The Go codec (package wire), the Python codec
// (spliced_connector.wire) and the tables of docs/protocol.md are generated from
// Wire; `go generate ./connector/wire` writes them, and a test of package wire
// fails when one of them differs.
//
// To add an operation: its messages in a messages file here, its line in
// operations.go, a sample for its golden frames in wire's sample_test.go, and its
// handler in the daemon, which is told by a test of its own.
package schema
