// Package api is the administrative interface of a node for operators and scripts: a small
// REST server over fasthttp, its OpenAPI document, and a client. No engine waits for it;
// engines use the socket protocol of connector/wire.
//
// The server declares its data sources as interfaces, Node, Catalogue, Canaries, Control and
// Events, which the daemon implements. It owns its listeners' connections and no other memory:
// every answer is a copy made by the implementation.
//
// The dashboard (package ui) is served at /ui/ to every client of a listener: its files
// contain nothing about the node, and it gets its data from the REST API.
//
// There are two kinds of listeners. A trusted one (the unix socket with mode 0600) allows
// changes and profiling of the process. All others are untrusted: changes over them need a
// bearer token, and so do reads, except over loopback while no token is set. All methods of
// Server and Client may be called concurrently.
package api
