// Package torture breaks a cache on purpose and audits what survives. Writers put segments
// and checkpoints whose bytes follow from a seed. They record in a ledger what was
// acknowledged, at which level, after the reply has arrived. The daemon is killed with
// SIGKILL at a random moment; after the restart everything is looked up, listed and read
// back. The same is done to a store in this process on an in-memory file system that loses
// unsynced data, since a killed process never loses what the kernel has.
//
// The ledger, the workload and the audit do not depend on daemons: they use a small
// interface, implemented by the daemon's client, the store in this process and a fake in
// tests.
package torture
