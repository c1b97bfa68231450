// Package torture breaks a cache on purpose and audits what survives. Writers put segments and
// checkpoints whose bytes are computed from a seed. When a reply has arrived, they record in a
// ledger which item was acknowledged at which level. The daemon is killed with SIGKILL at a
// random moment. After the restart, an audit looks up, lists and reads back everything. A killed
// process never loses data that the kernel has. Package torture therefore also simulates losses
// of power, on a store in this process whose in-memory file system loses unsynced data.
//
// The ledger, the workload and the audit do not depend on daemons: they use a small interface,
// which the daemon's client, the store in this process and a fake in tests implement.
package torture
