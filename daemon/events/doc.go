// Package events publishes the contents of the node's cache for routers that read vLLM's KV events
// (llm-d, Dynamo). The stream has the format of vLLM's own: msgpack batches of BlockStored,
// BlockRemoved and AllBlocksCleared on a ZeroMQ PUB socket. From a second socket (ROUTER),
// subscribers request batches that they missed.
//
// A router identifies prompts by block hashes, which it computes from token ids. So a checkpoint of
// n tokens, or a segment that begins a prompt, is published as the chain of its whole blocks with
// their token ids:
//
//	group 0  the rows of attention layers: every block of the chain
//	group 1  the states of recurrent layers: only the last block, where they are
//
// Package held provides the set of cached objects, without the token ids of checkpoints. The ids
// come from the prompts for which engines request advice: before they store a checkpoint, and when
// they find a prefix. A cached object that has not occurred in a prompt since the start is not
// published.
//
//	held ── Added, Removed ──► queue ─┐
//	server ── Served ──► prompts ─────┼─► Run: told ──► batches ──► buffer ──► subscribers
//	ROUTER ── start number ───────────┘                                └─────► replays
//
// Each subscription begins with AllBlocksCleared and everything that is published at that time. So
// a subscriber keeps nothing of an earlier run, and a late subscriber needs no replay. A run's
// sequence numbers are lower than those of earlier runs: routers take a lower number for a restart.
// A request for numbers that are not in the buffer is answered like a new subscription.
//
// This package implements ZeroMQ's protocol (ZMTP 3.0, NULL mechanism) itself. In the Go library
// (zmq4), any client can make the server allocate memory by announcing a size, one silent client
// blocks all new connections, and one client that does not read blocks sending to all. Tests read
// the stream with that library, and with libzmq where Python has it: a client written here would
// share the server's errors. No program contains the library.
//
// There is no authentication, and the stream contains token ids of prompts.
package events
