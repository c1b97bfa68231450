// Package tiertest tests the requirements for every tier of segments and checkpoints,
// whatever it consists of: host memory, a disk, both together, and future ones.
//
// A Subject is such a tier from its user's point of view. Tier makes one from a
// tier.Tier; package storetest makes one from a store, with or without a lower tier.
// Tests of a tier add methods for what only the tier itself can do, such as lose power:
// Restarter, Spoiler, Disturber, Checker. Nothing here knows files, sockets or the store.
//
// Conformance is a list of stories, each with a fresh subject. Walk compares random
// operations with a plain map of the submitted objects and their acknowledged levels.
// Both compare every served byte.
package tiertest
