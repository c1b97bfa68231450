// Package object keeps segments and checkpoints in a bucket of an S3 server that the
// nodes of a cluster share: for what is cold, and for nodes that come up empty. Store is
// a tier.Remote for reading; Admit takes what is to be kept, and writes it behind.
//
// An object is one S3 object, never changed in place:
//
//	PREFIX v1/ab/cdef...    the 16 bytes of its tag in hexadecimal
//
//	0       4096            +HeaderBytes      +PayloadBytes
//	| block | extent header | payload         |
//
// The tag is a hash under the cluster's secret of profile, tenant, kind and key, so that
// a name tells nothing to who lacks the secret. The block (head.go) has an HMAC over
// itself and the extent header, which is checked before anything in it is believed: who
// can write to the bucket but lacks the secret cannot plant a description. The extent
// header and the payload are those of package extent, in one run that begins behind the
// block. Its seal covers every byte of the payload by keyed tags of chunks, and is
// compared, beside the digest of each chunk, before Read returns. Contents are not encrypted: who can
// read the bucket sees token ids and states. Tenants are named by their tag.
//
// # What lies there
//
// Hint looks at an index in memory: 8 bytes of each tag, from a listing of the bucket
// that runs in the background, first at the start and then again and again within a
// budget of requests; between listings, own writes and what was asked for and not found.
// So an empty node learns all that is there in a second for each few thousand objects,
// and an unknown key is a miss without a request. A listing was chosen over objects that
// hold deltas of the index since it needs no order between two kinds of objects, no
// leader and nothing to compact, and since expiry and the byte budget need each object's
// age and length anyway, which only the listing has. What it costs: one request for each
// thousand objects a pass, and what another node has written is not hinted at before
// the next pass. Find asks the server for a key that the index cannot rule out: before
// the first pass has ended, or where the index was too small. Setting aside a filter of
// some bits a key saves memory that is not short: 10^6 objects take 8 MB.
//
// # Age and room
//
// Any node's listing deletes what is older than the life time and, when the prefix holds
// more than its budget, what is oldest. Ages are differences of the server's own
// clock. Nodes that do so at once delete the same objects. A prefix belongs to one
// cluster: whatever has a name of the above form in it is swept.
//
// # Failure
//
// All waits are bounded: for an answer, for the next bytes, in queues. After some
// failures in a row the server is left alone for a while, longer each time, and nothing
// is hinted at. A server that is full is not written to for a while and is read on.
// An upload is one PUT: what is cut short leaves nothing. Wrong bytes are
// tier.ErrCorrupt; the object is not asked for again soon, and the next write of its
// name replaces it.
//
// All methods may run at once. Memory of an admitted object is read until done is
// called, that of Read's destination written until Read returns.
package object
