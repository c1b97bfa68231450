package tier

// Sink receives copies of objects that this node may evict: a store shared by all nodes,
// or a node with room. All methods may be called concurrently.
type Sink interface {
	// Expect returns how fast a copy could be fetched back from the sink. It reads memory
	// only, since it is called under the store's lock.
	Expect() Hint
	// Admit accepts an object for copying. It reads memory only, never waits and never calls the
	// store. Errors: ErrExists if the sink has the object or a copy is in flight, ErrBusy if too
	// much is in flight, ErrFull if the sink has no room, ErrUnavailable if it accepts nothing
	// now, ErrInvalid if it never accepts this object. The caller starts or cancels the Write. A
	// started Write calls done within a bounded time, with LevelSynced if the copy has arrived.
	Admit(o *Object) (Write, error)
}
