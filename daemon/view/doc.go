// Package view provides what operators see of a running daemon, in the form that package api
// serves: the node and its health, the catalogue of its objects, decisions, canaries and metrics.
// It reads counters of the store, the tiers and the server. It changes only what an operator
// requests.
package view
