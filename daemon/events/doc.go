// Package events publishes what a node holds as the KV-event stream that vLLM publishes
// of its cache, for routers that read that (llm-d, Dynamo): msgpack batches of BlockStored,
// BlockRemoved and AllBlocksCleared on a ZeroMQ PUB socket, and a ROUTER socket beside it
// from which subscribers get what they missed.
//
// A router knows prompts by the hashes that it makes of their token ids, block by block.
// So what is told of a checkpoint of n tokens, or of a segment that begins a prompt, is the
// chain of its whole blocks with their ids:
//
//	group 0  the rows of attention layers: every block of the chain
//	group 1  the states of recurrent layers: the last block alone, where they are
//
// Who holds what comes from package held. It does not know the ids of a checkpoint; these
// come from the prompts that engines ask advice for, before they store and when they
// find a prefix of them. What is held and has not been seen in a prompt since the start is
// not told.
//
//	held ── Added, Removed ──► queue ─┐
//	server ── Served ──► prompts ─────┼─► Run: told ──► batches ──► buffer ──► subscribers
//	ROUTER ── from which number ──────┘                                └─────► who asks again
//
// Each subscription begins with AllBlocksCleared and all that is told now, so that a
// subscriber keeps nothing of a former run, and needs no replay when it comes late. Sequence
// numbers of a run are below those of former runs, as those of engines are. Who asks for
// numbers that the buffer does not have gets the same as a new subscription.
//
// ZeroMQ's protocol (ZMTP 3.0, NULL mechanism) is spoken here and not by a library: the one
// for Go takes memory for as many bytes as whoever connects says, one that is silent keeps
// all others from connecting, and one that does not read keeps them from being sent to.
//
// Nothing here authenticates anybody, and the stream has token ids of prompts.
package events
