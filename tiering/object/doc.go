// Package object stores segments and checkpoints in a bucket of an S3 server that the
// nodes of a cluster share: for cold objects, and for nodes that start empty. Store is a
// tier.Remote for reading; Admit accepts objects and writes them asynchronously.
//
// An object is one S3 object, never changed in place:
//
//	PREFIX v1/ab/cdef...    the 16 bytes of its tag in hexadecimal
//
//	0       4096            +HeaderBytes      +PayloadBytes
//	| block | extent header | payload         |
//
// The tag is a hash of profile, tenant, kind and key with the cluster's secret, so a name
// reveals nothing without the secret. The block (head.go) has an HMAC over itself and the
// extent header, which is verified before anything in it is used: someone who can write
// to the bucket but lacks the secret cannot plant a description. Extent header and
// payload have the format of package extent, with one run that starts after the block.
// Its seal covers every byte of the payload through keyed tags of chunks. It is verified,
// in addition to the digest of each chunk, before Read returns. Contents are not
// encrypted: anyone who can read the bucket sees token ids and states. Tenants are named
// by their tag.
//
// # Index
//
// Hint reads an index in memory: 8 bytes of each tag. They come from a listing of the
// bucket, which runs in the background at the start and then repeatedly, within a budget
// of requests. Between listings the index also has the node's own writes, and objects
// that were asked for and not found. So an empty node learns all objects in one second
// per few thousand, and an unknown key is a miss without a request. The alternative,
// objects with deltas of the index, needs an order between two kinds of objects, a leader
// and compaction. Moreover, expiry and the byte budget need each object's age and length,
// which only the listing has. The cost is one request per thousand objects and pass, and
// that objects written by another node have no hint before the next pass. Find asks the
// server for a key that the index cannot rule out: before the first pass has ended, or if
// the index was too small. A filter of a few bits per key would save memory that is not
// scarce: 10^6 objects take 8 MB.
//
// # Age and room
//
// Any node's listing deletes objects older than the life time and, if the prefix is over
// its budget, the oldest objects. Ages are differences of the server's own clock. Nodes
// that do so at the same time delete the same objects. A prefix belongs to one cluster:
// everything in it with a name of the above form is swept.
//
// # Failure
//
// All waits are bounded: for an answer, for the next bytes, in queues. After several
// failures in a row the server is not asked for a while, longer each time, and there are
// no hints. A full server is not written to for a while, but still read. An upload is one
// PUT: when it is interrupted nothing is stored. Wrong bytes are tier.ErrCorrupt; the
// object is not asked for again for a while, and the next write of its name replaces it.
//
// All methods may be called concurrently. Memory of an admitted object is read until done
// is called, that of Read's destination written until Read returns.
package object
