package fakecuda

// Stats counts the live objects of this process. Fields marked "so far" count since the
// start of the process. The fields have the same order as in struct fakecuda_stats of
// fakecuda.h.
type Stats struct {
	Contexts        uint64 // retains of primary contexts
	Allocations     uint64 // cuMemAlloc
	Physical        uint64 // cuMemCreate and imports: handles that were not released
	Reservations    uint64 // address ranges
	Mappings        uint64 // cuMemMap
	Imports         uint64 // opened IPC handles of memory, repeated opens included
	MemoryObjects   uint64 // pieces of memory that some object of this process keeps alive
	MemoryBytes     uint64
	Streams         uint64 // not destroyed
	Workers         uint64 // threads of streams; a thread may live a little longer than its stream
	Queued          uint64 // operations that no stream has finished yet
	Events          uint64
	Modules         uint64
	Registered      uint64 // registered ranges of host memory
	RegisteredBytes uint64
	HostAllocations uint64 // cuMemHostAlloc
	Descriptors     uint64 // open descriptors that belong to the library
	Calls           uint64 // calls of all functions, so far
	Executed        uint64 // operations of streams, so far
	Misuses         uint64 // memory freed while queued operations use it, or overrun, so far
	Hanging         uint64 // calls that a Hang stops now
}

// Live returns s with zeros in the fields that only grow. The results before and after a
// test are equal if the test leaves nothing behind.
func (s Stats) Live() Stats {
	s.Calls, s.Executed, s.Misuses = 0, 0, 0
	return s
}
