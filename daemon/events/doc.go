// Package events publishes the contents of a node's cache as the KV-event stream that vLLM
// publishes for its own, for routers that read it (llm-d, Dynamo): msgpack batches of
// BlockStored, BlockRemoved and AllBlocksCleared on a ZeroMQ PUB socket, and a ROUTER
// socket from which subscribers request batches that they missed.
//
// A router identifies prompts by block hashes that it computes from their token ids.
// Therefore a checkpoint of n tokens, or a segment that begins a prompt, is published as the
// chain of its whole blocks with their ids:
//
//	group 0  the rows of attention layers: every block of the chain
//	group 1  the states of recurrent layers: only the last block, where they are
//
// Package held provides the set of cached objects. It does not know the token ids of a
// checkpoint. Those come from the prompts for which engines request advice, before they
// store and when they find a prefix. A cached object that has not occurred in a prompt since
// the start is not published.
//
//	held ── Added, Removed ──► queue ─┐
//	server ── Served ──► prompts ─────┼─► Run: told ──► batches ──► buffer ──► subscribers
//	ROUTER ── start number ───────────┘                                └─────► replays
//
// Each subscription begins with AllBlocksCleared and everything published at that time, so
// that a subscriber keeps nothing of an earlier run, and a late one needs no replay. The
// sequence numbers of a run are lower than those of earlier runs, as with engines. A request
// for numbers that are not in the buffer gets the same reply as a new subscription.
//
// This package implements ZeroMQ's protocol (ZMTP 3.0, NULL mechanism) itself. The Go
// library allocates as many bytes as any client announces, one silent client blocks all new
// connections, and one that does not read blocks sending to the others.
//
// There is no authentication, and the stream contains token ids of prompts.
package events
