// Package object stores segments and checkpoints in a bucket of an S3 server that the nodes
// of a cluster share. The bucket keeps cold objects, and serves nodes that start empty.
// Store is a tier.Remote for reading, and a tier.Sink that writes objects asynchronously.
//
// Each object is one S3 object, which is never changed in place:
//
//	PREFIX v1/ab/cdef...    name; abcdef... are the 16 bytes of its tag in hexadecimal
//
//	0       4096            +HeaderBytes      +PayloadBytes
//	| block | extent header | payload         |
//
// The tag is a keyed hash of profile, tenant, kind and key, so a name reveals nothing
// without the cluster's secret. The block (head.go) has an HMAC over itself and the extent
// header. It is verified before the contents of the header are used, so someone who can
// write to the bucket but lacks the secret cannot plant a description. Extent header and
// payload have the format of package extent, with one run that starts after the block. The
// seal in the header covers every byte of the payload through keyed tags of chunks. Read
// verifies the seal and the digest of each chunk. Contents are not encrypted: anyone who
// can read the bucket sees token ids and states, but tenants only as tags.
//
// # Index
//
// Hint reads an index in memory, with 8 bytes of each tag. They come from listings of the
// bucket (passes), which run repeatedly in the background with a limited rate of
// requests. Between passes, notes are added to the index: objects that this node has
// written, and objects that the server did not have. So an empty node learns a few
// thousand objects per second, and an unknown key is a miss without a request. A pass
// takes one request per thousand objects, and an object written by another node has no
// hint before the next pass. Find asks the server for a key that the index cannot rule
// out: before the first pass has ended, or if the index is too small for all objects.
// Alternatives were rejected. Storing deltas of the index in the bucket would need an
// order between two kinds of objects, a leader and compaction. Moreover, expiry and the
// byte budget need each object's age and length, which only a listing has. A filter of a
// few bits per key would save memory that is not scarce: 10^6 objects take 8 MB.
//
// # Age and room
//
// Any node's pass deletes objects older than Config.Life and, if the prefix exceeds
// Config.Bytes, the oldest objects. Ages are differences between times of the server's clock,
// so nodes that do this at the same time delete the same objects. A prefix must belong to one
// cluster, since any object in it with a name of the above form may be deleted.
//
// # Failure
//
// All waits have timeouts: for an answer, for the next bytes, in queues. After several
// failures in a row the server is not asked for a while, longer each time, and there are no
// hints. A full server is not written to for a while, but still read. An upload is one PUT:
// if it is interrupted, nothing is stored. Wrong bytes are tier.ErrCorrupt. The object is
// then not asked for again for a while, and the next write of its name replaces it.
//
// All methods may be called concurrently. The memory of an admitted object is in use until
// the callback of its write is called (tier.Write.Start), and the destination of a Read
// until Read returns.
package object
