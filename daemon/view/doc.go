// Package view is what people see of a running daemon: the node and its health, the
// catalogue of what it holds, decisions, canaries and metrics, as package api serves
// them. It reads what the store, the tiers and the server count, and changes nothing
// but what an operator asks for.
package view
