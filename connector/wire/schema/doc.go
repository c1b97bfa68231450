// Package schema is the single description of the protocol: its operations, messages, numbers
// and bounds. The Go codec (package wire), the Python codec (spliced_connector.wire) and the
// tables of docs/protocol.md are generated from Wire by `go generate ./connector/wire`. A
// test of package wire fails if one of them differs.
//
// To add an operation, add its messages to a messages file here, its line to operations.go, a
// sample for its golden frames to wire's sample_test.go, and its handler to the daemon, where
// a test requires one.
package schema
