// Package tiertest tests the requirements for every tier of segments and checkpoints,
// whatever it consists of: host memory, a disk, both together, or another one.
//
// A Subject is such a tier as its user sees it. Tier makes one from a tier.Tier; package
// storetest makes one from a store, with or without a lower tier. The tests of a tier add
// methods for abilities of that tier, such as losing power: Restarter, Spoiler, Disturber,
// Checker. Nothing here knows files, sockets or the store.
//
// Conformance is a list of test stories, each with a fresh subject. Walk runs random
// operations. It compares the subject with a plain map of the objects that were put and of
// their acknowledged levels. Conformance and Walk compare every byte that the subject
// serves.
package tiertest
