package fakecuda

// Stats counts the live objects of this process, unless a field says "so far".
// Its fields have the order of struct fakecuda_stats in fakecuda.h.
type Stats struct {
	Contexts        uint64 // retains of primary contexts
	Allocations     uint64 // cuMemAlloc
	Physical        uint64 // cuMemCreate and imports: handles not released
	Reservations    uint64 // address ranges
	Mappings        uint64 // cuMemMap
	Imports         uint64 // legacy memory handles opened, with their repeats
	MemoryObjects   uint64 // pieces of memory that anything here keeps alive
	MemoryBytes     uint64
	Streams         uint64 // not destroyed
	Workers         uint64 // threads of streams; some may outlive their stream
	Queued          uint64 // operations that no stream has finished
	Events          uint64
	Modules         uint64
	Registered      uint64 // host ranges
	RegisteredBytes uint64
	HostAllocations uint64 // cuMemHostAlloc
	Descriptors     uint64 // open descriptors of the library's own
	Calls           uint64 // of all functions, so far
	Executed        uint64 // operations of streams, so far
	Misuses         uint64 // memory taken away under queued operations or overrun, so far
	Hanging         uint64 // calls that a Hang holds now
}

// Live is s without what only ever grows: equal before and after when nothing
// was left behind.
func (s Stats) Live() Stats {
	s.Calls, s.Executed, s.Misuses = 0, 0, 0
	return s
}
