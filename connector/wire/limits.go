package wire

// Bounds of the protocol. A count beyond its bound is ErrMalformed; most are
// guesses with room to spare, chosen so that one full column still fits a frame.
const (
	// MaxFrame is the largest frame, header included. Linux takes seqpacket
	// messages up to about 200 KiB with default socket buffers (measured), so
	// this passes without tuning.
	MaxFrame = 128 << 10

	// MaxBody is the largest body.
	MaxBody = MaxFrame - HeaderBytes

	// MaxErrorText is the largest text of an error reply, in bytes.
	MaxErrorText = 1 << 10

	MaxKeys         = 2048     // segment keys, prefix hashes or checkpoints in one request
	MaxIDs          = 4096     // leases, reservations or request ids in one request
	MaxCommitRows   = 2048     // rows of a commit
	MaxDigests      = 8192     // chunk digests in one frame (8 GiB of full chunks)
	MaxExtents      = 4096     // extents in one reply
	MaxNodes        = 1024     // nodes of a checkpoint chain
	MaxSpans        = 2048     // spans of a plan
	MaxBlocks       = 24 << 10 // entries of an engine's block table
	MaxTable        = 12 << 10 // entries of all block tables in one reply
	MaxPositions    = 1024     // checkpoints that one advice names
	MaxSamples      = 1024     // measured prefills in one advise
	MaxWays         = 8        // ways to serve a prompt
	MaxMemoryLayers = 1024     // attention layers of registered memory
	MaxIdentity     = 96 << 10 // canonical bytes of an identity
	MaxTenants      = 64       // tenants of one connection
	MaxName         = 256      // bytes of a name of a client, engine, tenant or counter
	MaxToken        = 1024     // bytes of a tenant's token
	MaxSalt         = 256      // bytes of a tenant's salt
	MaxStats        = 1024     // counters in one reply
	MaxChunks       = 252      // chunks of device memory in one frame: Linux carries 253 descriptors, one is the PTX

	// HelloDescriptors and ProfileDescriptors are how many descriptors a hello
	// reply must and a profile request may carry. AttachDescriptors come with an
	// attach-device reply beside those of its chunks.
	HelloDescriptors   = 3
	ProfileDescriptors = 1
	AttachDescriptors  = 1
)
