// Package api is the administrative surface of a node for people and scripts: a
// small REST server over fasthttp, its OpenAPI document, and a client for it.
// No engine waits on it; engines use the socket protocol of connector/wire.
//
// The server declares what it needs served as interfaces, Node, Catalogue, Canaries
// and Events, which the daemon implements. It owns its listeners' connections
// and no other memory: every answer is a copy taken by the implementation.
//
// The dashboard (package ui) is served at /ui/ to whoever reaches a listener: its files
// say nothing of the node, and what it shows it asks of the REST.
//
// Two kinds of listener exist. A trusted one (the 0600 unix socket) may change
// things and profile the process; every other one only reads, unless a bearer
// token is configured. All methods of Server and Client may run at once.
package api
