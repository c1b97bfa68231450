// Package torture breaks a cache on purpose and audits what is left. Writers put
// segments and checkpoints whose bytes follow from a seed, and note in a ledger
// what was acknowledged, at which level, and only once the reply has arrived; the
// daemon is killed with SIGKILL at a moment of chance; after the restart
// everything is looked up, listed and read back. The same is done to a store in
// this process on a file system in memory that loses what was not synced, since
// a killed process never loses what the kernel has.
//
// The ledger, the workload and the audit know nothing of daemons: they work on
// a small interface, which the daemon's client, the store in this process and a
// fake in tests implement.
package torture
