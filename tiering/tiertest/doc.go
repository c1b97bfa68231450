// Package tiertest is what every tier of segments and checkpoints must keep,
// whatever it is made of: host memory, a disk, both of them together, and what may
// come later.
//
// A Subject is such a tier as who uses it sees it. Tier makes one of a tier.Tier;
// package storetest makes one of a store, with or without a tier below. What only the
// tier itself can do, such as to be cut off from its power, its tests add as methods:
// Restarter, Spoiler, Disturber, Checker. Nothing here knows of files, sockets or the
// store.
//
// Conformance is a list of stories, each with a fresh subject. Walk is random
// operations beside a plain map of what was submitted and how safe it was said to
// be. Both compare every byte that is served.
package tiertest
